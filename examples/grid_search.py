"""
Choose a recurrence by cross-validation: skorch and scikit-learn
================================================================

You learn: how to choose a layer and its learning rate with GridSearchCV of scikit-learn, through skorch.
Run time: about 15 s of CPU time, one thread. Data: 300 sequences of 100 steps, with the first input as target.
"""

# %%
# Was the first input 2 or -2? Ninety-nine steps of noise follow, and the answer is asked for at the end.
import argparse
import warnings

import torch
from sklearn.model_selection import GridSearchCV
from skorch import NeuralNetClassifier
from torch import nn

import holdfast

parser = argparse.ArgumentParser()
for name, default in (("--rows", 300), ("--steps", 100), ("--epochs", 20)):
    parser.add_argument(name, type=int, default=default)
arguments = parser.parse_args()
generator = torch.Generator().manual_seed(0)
y = torch.arange(arguments.rows) % 2
x = 0.5 * torch.randn(arguments.rows, arguments.steps, 1, generator=generator)
x[:, 0, 0] = 2.0 * (2 * y - 1)


# %%
# Any module will do; this one reads all steps and answers at the last.
class Classifier(nn.Module):
    """A recurrence and a readout of its last output."""

    def __init__(self, layer="lru", units=16):
        super().__init__()
        made = (
            nn.LSTM if layer == "lstm" else lambda *sizes, **how: holdfast.nn.RecurrentStack(*sizes, layer=layer, **how)
        )
        self.rnn, self.out = made(1, units, batch_first=True), nn.Linear(units, 2)

    def forward(self, x):
        return self.out(self.rnn(x)[0][:, -1])


# %%
# Three folds of each of six combinations.
torch.manual_seed(0)
estimator = NeuralNetClassifier(
    Classifier, criterion=nn.CrossEntropyLoss, optimizer=torch.optim.Adam, max_epochs=arguments.epochs, batch_size=32,
    train_split=None, verbose=0,
)  # fmt: skip
grid = {"module__layer": ["lstm", "lru", "s4d"], "lr": [1e-3, 1e-2]}
search = GridSearchCV(estimator, grid, cv=3, scoring="accuracy")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of scikit-learn, about versions of its own
    search.fit(x.numpy(), y.numpy())
for score, chosen in zip(search.cv_results_["mean_test_score"], search.cv_results_["params"], strict=True):
    print(f"{chosen['module__layer']:5} rate {chosen['lr']:<6g} accuracy {score:.2f}")
print(f"best: {search.best_params_['module__layer']} at {search.best_params_['lr']:g}")

# %%
# What the best one remembers; its network is found inside the estimator.
print(holdfast.diagnose(search.best_estimator_, needs=arguments.steps))
