// What scan.cpp compiles for others too: real states with a factor that is constant in time, the LRU's second case.
#pragma once

#include "scan/backward.h"
#include "scan/forward.h"

#define HOLDFAST_SCAN_INSTANCES(EXTERN, T)                                                                            \
  EXTERN template void forward<Real, false, true>(const Forward<T> &, const Layout &, int64_t, double *, double *);   \
  EXTERN template void forward<Real, false, false>(const Forward<T> &, const Layout &, int64_t, double *, double *);  \
  EXTERN template void backward<Real, false, true>(const Backward<T> &, const Layout &, int64_t, double *, double *); \
  EXTERN template void backward<Real, false, false>(const Backward<T> &, const Layout &, int64_t, double *,           \
                                                       double *);                                                    \
  EXTERN template void run_forward<Real, false>(const ForwardProblem<T> &, int);                                      \
  EXTERN template void run_backward<Real, false>(const BackwardProblem<T> &, int);
