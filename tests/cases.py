"""Every law and parameterization once, for the tests that run over all of them."""

from holdfast import laws, parameterizations

LAWS = (
    laws.Exponential(0.5),
    laws.Exponential(20.0),
    laws.PowerLaw(1.5),
    laws.PowerLaw(3.0),
    laws.StretchedExponential(2.0, 0.5),
    laws.StretchedExponential(0.7, 2.0),
    laws.Finite(3.0),
    laws.Finite(3.0, 2.0),
    laws.ExponentialMixture((1.0, 0.2), (0.5, 0.5)),
    laws.ExponentialMixture((1.0, 0.5, 3.0), (1.0, -2.0, 4.0)),
    laws.ReciprocalSum(1, 5),
    laws.ReciprocalSum(2, 5),
    laws.OscillatingExponential(0.3, 2.0),
    laws.OscillatingExponential(0.3, 2.0, -5.0),
)
NOT_INTEGRABLE = (laws.PowerLaw(0.7), laws.PowerLaw(1.0), laws.ReciprocalSum(1), laws.ReciprocalSum(2))

# default constants, then others
PARAMETERIZATIONS = (
    *(parameterizations.get(name, time="continuous") for name in parameterizations.names("continuous")),
    *(parameterizations.get(name, time="discrete") for name in parameterizations.names("discrete")),
    parameterizations.get("best", a=0.3, b=2.0),
    parameterizations.get("best", time="discrete", b=0.5),
    parameterizations.get("best", time="discrete", b=0.8),
    parameterizations.get("best", time="discrete", b=3.0),
    parameterizations.get("clip", edge=0.1),
    parameterizations.get("clip", time="discrete", edge=0.1),
)
STABLE = tuple(p for p in PARAMETERIZATIONS if p.modulus(0.1) < float("inf"))
