"""Unified Normalization written out, one channel after the other: numpy and loops, no torch."""

import numpy as np

EPS = 1e-5


class Oracle:
    """`rule`: None, "official" (all channels by one condition), or "clip" (each channel against its own window)."""

    def __init__(self, weight, bias, window=(4, 4), warmup=4000, alpha=0.9, rule=None, start=0):
        self.gamma, self.beta = np.array(weight), np.array(bias)
        self.c = len(self.gamma)
        (self.mf, self.mb), self.warmup, self.alpha, self.rule = window, warmup, alpha, rule
        self.v, self.psi = np.ones(self.c), np.zeros(self.c)
        self.omega, self.g = np.zeros((self.mf, self.c)), np.zeros((self.mb, self.c))
        self.t, self.skips = start, 0

    def forward(self, x, valid):
        """x (n, c), of which `valid` (n) are real tokens."""
        self.t += 1
        t, slot = self.t, self.t % self.mf
        real = [token for token, ok in zip(x, valid, strict=True) if ok]
        q = sum(token**2 for token in real) / len(real)
        before = self.omega.copy()
        self.omega[slot] = q
        skip = np.full(self.c, self.mf == 1)
        if self.rule == "official" and t >= self.warmup:
            pooled = np.var(np.sqrt(before), ddof=1)
            if any(self.omega[:, c].mean() - self.geometric(c) > self.mf * pooled for c in range(self.c)):
                skip[:] = True
                self.omega[slot] = self.v
                self.skips += 1
        if self.rule == "clip" and t > self.mf:
            for c in range(self.c):
                logs = np.log(before[:, c] + EPS)
                middle = np.median(logs)
                reach = 5 * max(0.2, np.median(np.abs(logs - middle)))
                wanted = np.log(q[c] + EPS)
                if abs(wanted - middle) > reach:
                    skip[c] = True
                    self.omega[slot, c] = max(0, np.exp(middle + np.sign(wanted - middle) * reach) - EPS)
                    self.skips += 1
        s2, remembered = np.empty(self.c), np.empty(self.c)
        for c in range(self.c):
            early = t <= self.mf or t < self.warmup
            remembered[c] = self.omega[slot, c] if early else self.geometric(c)
            s2[c] = q[c] if skip[c] else remembered[c]
        r = np.ones(self.c)
        if t > max(1000, self.warmup):
            r = np.where(skip, 1, np.clip(np.sqrt((s2 + EPS) / (self.v + EPS)), 0.2, 5))
        moved = s2 if self.rule != "clip" else remembered
        self.v = self.alpha * self.v + (1 - self.alpha) * moved
        z = x / np.sqrt(s2 + EPS)
        return self.gamma * z + self.beta, (t, z, s2, r, skip)

    def geometric(self, c):
        with np.errstate(divide="ignore"):
            return np.exp(np.mean(np.log(self.omega[:, c])))

    def backward(self, saved, dy, counted):
        """dy (n, c); the mean of the gradient statistic goes over the tokens that are `counted` (n)."""
        t, z, s2, r, skip = saved
        h = r * self.gamma * dy
        k = (h * z)[counted].mean(0)
        self.g[t % self.mb] = np.where(skip, self.psi, k)
        m = k if t <= self.mb or t < self.warmup else np.where(skip, k, self.g.mean(0))
        self.psi = self.alpha * self.psi + (1 - self.alpha) * m
        e = np.where(skip, m, self.psi)
        return (h - e * z) / np.sqrt(s2 + EPS), (dy * r * z).sum(0), dy.sum(0)

    def state(self):
        return {
            "running_var": self.v,
            "ema_gz": self.psi,
            "buffer_x2": self.omega,
            "buffer_gz": self.g,
            "skip_counter": np.array([self.skips]),
            "iters": np.array([self.t]),
        }
