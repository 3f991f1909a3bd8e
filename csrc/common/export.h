// Marks the functions of the C ABI; everything else is hidden.
#pragma once

#if defined(_WIN32)
#define HOLDFAST_EXPORT extern "C" __declspec(dllexport)
#else
#define HOLDFAST_EXPORT extern "C" __attribute__((visibility("default")))
#endif
