"""What each paper, and each part beyond them, says: about ten lines and one figure for a reader who has not read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Story:
    """Paragraphs on a paper, and the figure that shows its point.

    Args:
        paragraphs: what it asks and finds; formulas are typeset as everywhere on the page.
        experiment: id of the experiment that has the figure.
        figure: name of the figure.
        panels: numbers of the panels to show; missing ones are left out.
    """

    paragraphs: Sequence[str]
    experiment: str
    figure: str
    panels: Sequence[int]


@dataclass(frozen=True)
class Decisive:
    """A claim that a paper stands or falls with, in a few words; its status is that of the result.

    Args:
        experiment: id of the experiment.
        claim: name of the claim.
        text: what it claims.
    """

    experiment: str
    claim: str
    text: str


DECISIVE = {
    "iat": (
        Decisive("iat-fig1", "polynomial", "Linear RNNs approximate power laws, but not stably"),
        Decisive("iat-fig2", "unstable", "Trained tanh RNNs do so unstably too"),
        Decisive("iat-fig4", "softplus", "Softplus recurrent weights make it stable"),
    ),
    "ssm": (
        Decisive("ssm-prop39", "every eps", "Networks come within any eps of Volterra series"),
        Decisive("ssm-fig5", "exponential", "The memory of random networks decays exponentially"),
        Decisive("ssm-prop36", "width in T", "Five layers need a width linear in the length"),
    ),
    "stable": (
        Decisive("stable-fig1", "softplus", "Softplus recurrent weights make power laws stable"),
        Decisive("stable-fig3", "best, b = 0.5", "The paper's f has the smallest gradient over weight"),
        Decisive("stable-table2", "the paper's rates, shakespeare", "Stable weights end with a smaller test loss"),
    ),
    "linrec": (
        Decisive("linrec-fig2", "whole image", "Near the unit circle the whole image is rebuilt"),
        Decisive("linrec-fig2", "almost perfect", "By the paper's formula almost perfectly"),
        Decisive("linrec-prop7", "sparse inputs", "Sparse inputs are recovered from the state"),
    ),
    "rates": (
        Decisive("rates-slopes", "direct, AdamW", "The largest rate of direct weights falls like 1/tau"),
        Decisive("rates-rule", "squared errors", "The median error of the rule is within 2 of the best"),
        Decisive("rates-rule", "better than lr/4", "It beats a quarter of the other weights' rate"),
    ),
    "open": (
        Decisive("open-volterra", "(t+1)^-1.5, softplus", "Softplus weights learn a squared power law stably"),
        Decisive("open-precision", "best, bfloat16", "In bfloat16 best keeps every rate within 0.5%"),
        Decisive("open-lambda", "fourier", "Eigenvalues that are searched for beat random rings"),
    ),
}
GLOSSARY = {
    "width m": "how many units or modes a model has. Claims on approximation are about what happens as m grows.",
    "memory M(t), rho(t)": "how much an input from t steps ago still moves the output. Exponential memory falls like 0.9^t, "
    "polynomial memory like (t+1)^-1.5: much more slowly in the end.",
    "mode, eigenvalue, rate": "a linear recurrence is a sum of modes. Each multiplies its state by an eigenvalue lam at "
    "every step, so that it falls like e^{-rate t}; the boundary of stability is |lam| = 1, rate 0.",
    "perturbation beta, error E_m(beta)": "the weights of a model of width m are moved by up to beta, and E_m(beta) is the "
    "largest resulting distance from the target. E_m(0) is the error of the unperturbed model.",
    "radius": "the largest beta at which E_m(beta) is still below a quarter of the target's norm.",
    "stable, unstable": "stable: models approximate the target, and their radii do not shrink as m grows. Unstable: they do. "
    "Judged by the 95% interval of the slope of log radius in log m; inconclusive if it allows both.",
    "functional norm": "the largest error over all inputs up to 1 and all times; the papers' own measure is a sample of it.",
    "parameterization f": "a weight w is trained and the eigenvalue f(w) is used. Direct: f(w) = w. Exp, softplus, tanh, "
    "inverse and best (the third paper's, -1/(a w^2 + b)) keep every w on the stable side; relu and clip cut off.",
    "gradient over weight": "|dLoss/dw| / |w|, the size of a training step against what it changes.",
    "recurrent rate": "the learning rate of the recurrent weights, where it is not that of the others.",
    "met, not met, undecided": "whether the numbers computed here agree with the statement. Undecided: they allow both.",
}
STORIES = {
    "iat": Story(
        (
            "A recurrent network reads a sequence and answers at every step. Its memory M(t) is how much an input from t "
            "steps ago still moves the answer. Which memories can such a network learn, and keep?",
            "The paper reads the answer backwards: if wider and wider networks come near a target, and stay near when "
            "their weights are moved a little, then the target's memory decays exponentially. Slower memory can be "
            "approximated, but not stably.",
            "In the figure a line is a network of width m fitted to a target, and its error when the recurrent weights "
            "move by beta. Where the target decays like 0.9^t (first panel) all widths break at about the same beta. Where it "
            "decays like (t+1)^-1.5 (second) each wider network fits better and breaks earlier. The way out is to learn "
            "other weights: rates f(w) that no w makes unstable.",
        ),
        "iat-fig1",
        "functional-norm",
        (0, 2),
    ),
    "ssm": Story(
        (
            "A state-space model is a linear recurrence in each layer with a nonlinear function between layers. Does "
            "that nonlinearity give it more than a linear recurrence has?",
            "In what it can compute, yes: two layers give every element-wise function, one a convolution, five any "
            "continuous function of a sequence, and the paper builds them. In how long it remembers, no: the memory of "
            "such a stack decays exponentially, at the rate of its slowest layer, as that of an RNN does.",
            "The figure has the memory of random networks of one, two and four layers in logarithmic scale. Late in time "
            "the lines are straight: exponential decay, whatever the depth. A longer memory has to come from eigenvalues "
            "near the boundary of stability, which is where training is hardest.",
        ),
        "ssm-fig5",
        "memory",
        (0, 3),
    ),
    "stable": Story(
        (
            "To remember long, the eigenvalues of a state-space model must lie near the boundary of stability, and then a "
            "small step of training pushes them over it. The paper calls this the curse of memory.",
            "The curse lies in the parameterization, not in the model. Let w be learned and "
            "lam = f(w) be used, with an f that keeps every "
            "w on the stable side and slows down near the boundary: then an error of beta in the weights costs at most "
            "g(beta), however slow the mode. Exponential, softplus and the paper's own f = -1/(a w^2 + b) do this.",
            "In the figure the target decays like (t+1)^-1.1. Direct weights (first panel) break at their slowest rate, "
            "earlier with every width; softplus weights (second) turn up at one beta for all. The paper's f also keeps the "
            "gradient in proportion to the weight, so that larger learning rates train.",
        ),
        "stable-fig1",
        "functional-norm",
        (0, 2),
    ),
    "linrec": Story(
        (
            "Is a nonlinear recurrence needed at all? The paper takes a linear one, x_k = Lam x_{k-1} + u_k with N complex "
            "modes, and puts everything nonlinear into a map of the state that comes after it.",
            "If the state still holds all inputs, such a map can compute anything from it. It does when there are as many "
            "modes as steps, or as the inputs have degrees of freedom: the inputs are the solution of a linear system with a "
            "Vandermonde matrix. How well it can be solved depends on where the eigenvalues lie.",
            "The figure has digits read pixel by pixel and rebuilt from the last state. Eigenvalues from the whole disk "
            "return only the latest rows; on a thin ring next to the unit circle the whole image comes back. A real "
            "system solved for the same inputs is sharper still.",
        ),
        "linrec-fig2",
        "digits",
        (3, 7, 11, 15, 16),
    ),
    "rates": Story(
        (
            "How fast can a memory be learned? Adam moves a weight w by about the learning rate at every step, whatever the "
            "gradient. What matters to a mode of rate r = -f(w) is the relative change delta = |f'(w)| / |f(w)| times the "
            "learning rate: as much for every mode with exp, more for slow modes with direct weights, less with best.",
            "So the largest learning rate that trains falls like 1/tau with the memory tau of a task for direct weights, stays "
            "the same for exp and softplus and grows like the root of tau for best: the same delta in other units. The other "
            "end is the reach: in K steps a weight moves by at most the sum of its steps, which bounds the memory.",
            "In the figure layers of real modes learn e^{-t/tau}; a line is the largest recurrent rate at which they still do. "
            "Both ends give a rule for the rate; the other experiments test it on tasks that it was not chosen on.",
        ),
        "rates-slopes",
        "largest-rates",
        (0, 1),
    ),
}
