"""
A policy that has to remember: sb3-contrib
==========================================

You learn: how to replace the recurrence of a policy of sb3-contrib, and how that changes the reward if it has to remember.
Run time: about 60 s of CPU time, one thread. Task: name a cue 20 steps later; without memory the reward is 0.5.
"""

# %%
# The task: a cue of 1 or -1, a delay without any sign of it, and a step that asks for it.
import argparse
import time

import gymnasium
import numpy as np
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.env_util import make_vec_env

import holdfast
from holdfast.integrations.sb3 import RecurrentStackPolicy

parser = argparse.ArgumentParser()
for name, default in (("--delay", 20), ("--steps", 20_480), ("--seeds", 3)):
    parser.add_argument(name, type=int, default=default)
arguments = parser.parse_args()


class Recall(gymnasium.Env):
    """The cue, then nothing, then a question."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.cue, self.time = int(self.np_random.integers(2)), 0
        return np.array([2 * self.cue - 1, 0], np.float32), {}

    def step(self, action):
        self.time += 1
        asked, done = self.time == arguments.delay, self.time > arguments.delay
        return np.array([0, asked], np.float32), float(done and action == self.cue), done, False, {}


# %%
# The same sizes, rates and seeds for both; only the policy's class is another.
POLICIES = {"LSTM": ("MlpLstmPolicy", {}), "LRU": (RecurrentStackPolicy, {"layer": "lru"})}


def learned(policy, seed, **choices):
    model = RecurrentPPO(
        policy, make_vec_env(Recall, 8, seed=seed), n_steps=128, batch_size=256, n_epochs=4, learning_rate=3e-3, seed=seed,
        policy_kwargs={"lstm_hidden_size": 32, "net_arch": [], **choices},
    )  # fmt: skip
    start = time.process_time()
    model.learn(arguments.steps)
    reward = np.mean([episode["r"] for episode in model.ep_info_buffer])  # of the last 100 episodes
    return model, reward, time.process_time() - start


for name, (policy, choices) in POLICIES.items():
    for seed in range(arguments.seeds):
        model, reward, seconds = learned(policy, seed, **choices)
        print(f"{name}, seed {seed}: mean reward {reward:.2f}, {seconds:.1f} s of processor time")
    print(holdfast.diagnose(model, name=f"{name} of the policy", needs=arguments.delay))
