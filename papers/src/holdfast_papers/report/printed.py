"""The papers' tables as they are printed, shown beside what was computed here; numbers are texts, so that none is rounded."""

from __future__ import annotations

from holdfast_papers.pages import Table

_IMAGES = ("parameterization", "train accuracy, %", "train loss", "test accuracy, %", "test loss")
PRINTED = {
    "iat-table1": Table(
        "printed",
        "Table 1 as the paper prints it: standard errors in brackets.",
        ("parameterization", "test loss", "test accuracy, %"),
        [
            ("softplus (stable)", "0.8903 (0.0004)", "71.36 (0.03)"),
            ("exp (stable)", "0.9028 (7.2E-05)", "70.55 (0.01)"),
            ("inverse (stable)", "0.9082 (0.0005)", "70.77 (0.05)"),
            ("direct (unstable)", "0.9177 (0.0105)", "68.47 (0.06)"),
        ],
    ),
    "ssm-table1": Table(
        "printed",
        "Table 1 as the paper prints it: sequence length T, L layers, hidden dimension m, C channels, kernels of size K.",
        ("", "RNN", "TCN", "transformer"),
        [
            ("number of weights", "L m (m + d_in + d_out)", "L C K d_in", "3 L m d_in"),
            ("inference cost", "O(T)", "O(T)", "O(T^2)"),
            ("memory pattern", "exponential decay", "low rank", "no restriction"),
            ("memory improved version", "SSM", "CKConv", "linear transformer"),
        ],
    ),
    "stable-fig2": Table(
        "printed",
        "Table 1 as the paper prints it, up to a constant.",
        ("time", "parameterization", "f(w)", "gradient scale"),
        [
            ("continuous", "relu", "-ReLU(w)", "1 / w^2 for w > 0"),
            ("continuous", "exp", "-e^w", "e^{-w}"),
            ("continuous", "softplus", "-log(1 + e^w)", "e^w / ((1 + e^w) (log(1 + e^w))^2)"),
            ("continuous", "best", "-1 / (a w^2 + b)", "2 a |w|"),
            ("discrete", "relu", "exp(-ReLU(w))", "e^{-w} / (1 - e^{-w})^2 for w > 0"),
            ("discrete", "exp", "exp(-e^w)", "exp(w - e^w) / (1 - exp(-e^w))^2"),
            ("discrete", "softplus", "1 / (1 + e^w)", "e^{-w}"),
            ("discrete", "tanh", "tanh(w)", "e^{2w}"),
            ("discrete", "best", "1 - 1 / (w^2 + 0.5)", "2 |w|"),
        ],
    ),
    "stable-table2": Table(
        "printed",
        "Table 2 as the paper prints it: WikiText-103, learning rate 0.005.",
        ("parameterization", "train perplexity", "train loss", "test perplexity", "test loss"),
        [
            ("best", "17.182", "2.844", "20.811", "3.035"),
            ("exp (S5)", "15.721", "2.755", "20.218", "3.007"),
            ("softplus", "14.570", "2.679", "20.136", "3.003"),
            ("direct", "18.916", "2.940", "28.167", "3.338"),
        ],
    ),
    "stable-table3": Table(
        "printed",
        "Table 3 as the paper prints it: 3 billion weights, learning rate 0.01.",
        ("", "best", "exp", "softplus", "direct"),
        [("convergent / total experiments", "3/3", "0/3", "0/3", "0/3")],
    ),
    "stable-table4": Table(
        "printed",
        "Table 4 as the paper prints it: accuracies in %, length 20 with vocabulary 10, and length 131k with vocabulary 30.",
        ("parameterization", "train, length 20", "test, length 20", "train, length 131k", "test, length 131k"),
        [
            ("best", "57.95", "99.8", "53.57", "100"),
            ("exp (S5)", "54.55", "99.8", "53.57", "100"),
            ("clip", "50.0", "76.6", "13.91", "9.4"),
            ("direct", "43.18", "67.0", "16.59", "5.6"),
        ],
    ),
    "stable-table5": Table(
        "printed",
        "Table 5 as the paper prints it: MNIST, 10 epochs, mean of three runs, standard deviations in brackets.",
        _IMAGES,
        [
            ("best", "99.31 (0.0264)", "0.02269 (0.00121)", "99.3 (0.153)", "0.02501 (0.00519)"),
            ("exp", "99.26 (0.241)", "0.02305 (0.000694)", "99.21 (0.0321)", "0.02546 (0.00118)"),
            ("softplus", "99.14 (0.036)", "0.02337 (0.00132)", "99.19 (0.0458)", "0.02682 (0.000769)"),
            ("direct", "9.84 (0.0753)", "diverged", "10.09 (0.742)", "diverged"),
        ],
    ),
    "stable-table6": Table(
        "printed",
        "Table 6 as the paper prints it: CIFAR-10, 10 epochs, mean of three runs, standard deviations in brackets.",
        _IMAGES,
        [
            ("best", "61.97 (0.500)", "1.059 (0.0155)", "66.41 (0.156)", "0.9430 (0.00248)"),
            ("exp", "61.77 (0.690)", "1.062 (0.0141)", "65.87 (0.136)", "0.9487 (0.00983)"),
            ("softplus", "61.53 (0.716)", "1.0683 (0.0142)", "65.84 (0.05)", "0.9575 (0.00189)"),
            ("direct", "9.988 (0.032)", "diverged", "9.736 (8.533E-05)", "diverged"),
        ],
    ),
}
