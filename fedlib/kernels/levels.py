"""Gradients and losses of quantiles, the median and expectiles, in XGBoost's arithmetic.

The functions take what those of `fedlib.kernels.objectives` take. Their ``parameter`` is an array:
the levels of the outputs in ascending order, and for quantiles and the absolute error the scale of
each output's residuals behind them.
"""

import math

import numpy as np

from fedlib.kernels import kernel
from fedlib.kernels.objectives import store
from fedlib.kernels.splits import MAX_EXPONENT, ONE

SMOOTHING = np.float32(0.04)  # XGBoost's: the width of the smooth step, in scales
LEAST_CURVATURE = np.float32(3e-4)  # XGBoost's
LEAST_GAP = np.float32(1e-6)  # XGBoost's, between two expectiles
HALF, TWO = np.float32(0.5), np.float32(2)


@kernel
def quantile(margins, targets, weights, parameter, bits):
    """Return the gradients of XGBoost 3.4's smooth pinball loss.

    For a residual r = margin - target, a level a and a scale S, with x = r / (0.04 S), they are
    g = S / 2 (tanh x + 1 - 2 a) and h = 12.5 max(tanh(x) / x, 3e-4), times the weight.
    """
    n, n_outputs = margins.shape
    scale = 2.0**bits
    gradients = np.empty((n_outputs, n, 2), np.int64)
    for k in range(n_outputs):
        level, spread = np.float32(parameter[k]), np.float32(parameter[n_outputs + k])
        width, height = np.float32(SMOOTHING * spread), np.float32(HALF * spread)
        steepest, tilt = np.float32(HALF / SMOOTHING), np.float32(TWO * level)
        for i in range(n):
            if not width > 0 or weights[i] == 0:
                gradients[k, i] = 0
                continue
            x = np.float32(np.float32(margins[i, k] - targets[i]) / width)
            step = np.float32(np.tanh(x))
            curvature = ONE if x == 0 else np.float32(step / x)
            g = np.float32(height * np.float32(np.float32(step + ONE) - tilt))
            h = np.float32(steepest * max(curvature, LEAST_CURVATURE))
            store(gradients, k, i, np.float32(weights[i] * g), np.float32(weights[i] * h), scale)
    return gradients


@kernel
def quantile_losses(margins, targets, weights, parameter):
    """Return the pinball loss, the mean over the levels."""
    n, n_outputs = margins.shape
    losses = np.zeros(margins.shape[0])
    for i in range(n):
        for k in range(n_outputs):
            d = np.float64(targets[i]) - np.float64(margins[i, k])
            losses[i] += max(parameter[k] * d, (parameter[k] - 1.0) * d) * weights[i]
    return losses / n_outputs


@kernel
def absolute_error(margins, targets, weights, parameter, bits):
    """Return the gradients of XGBoost 3.4's smooth absolute error.

    For a residual r and the scale S, they are h = S / hypot(S, r) and g = r h, times the weight.
    """
    unit = 2.0**bits
    gradients = np.empty((1, margins.shape[0], 2), np.int64)
    spread = np.float32(parameter[0])
    for i in range(margins.shape[0]):
        r = np.float32(margins[i, 0] - targets[i])
        norm = np.float32(math.sqrt(np.float64(spread) * spread + np.float64(r) * r))
        curvature = np.float32(spread / norm) if norm > 0 else ONE
        g = np.float32(np.float32(weights[i] * r) * curvature)
        store(gradients, 0, i, g, np.float32(weights[i] * curvature), unit)
    return gradients


@kernel
def absolute_error_losses(margins, targets, weights, parameter):
    """Return the weighted sum of the absolute errors."""
    losses = np.zeros(margins.shape[0])
    for i in range(margins.shape[0]):
        losses[i] += abs(np.float64(margins[i, 0]) - targets[i]) * weights[i]
    return losses


@kernel
def weighted_roots(margins, targets, weights):
    """Return the weighted square roots (n, outputs) of absolute residuals."""
    roots = np.empty(margins.shape)
    for i in range(margins.shape[0]):
        for k in range(margins.shape[1]):
            root = np.float32(np.sqrt(np.float32(abs(np.float32(margins[i, k] - targets[i])))))
            roots[i, k] = np.float64(np.float32(weights[i] * root))
    return roots


@kernel
def soft_plus(x):
    """Return log(1 + e**x) in float32."""
    if x > 0:
        return np.float32(x + np.float32(np.log1p(np.float32(np.exp(np.float32(-x))))))
    return np.float32(np.log1p(np.float32(np.exp(x))))


@kernel
def expectiles(margins):
    """Return the expectiles (n, outputs) of margins: the first one, and then the gaps' sums."""
    levels = margins.copy()
    for i in range(margins.shape[0]):
        for k in range(1, margins.shape[1]):
            gap = np.float32(LEAST_GAP + soft_plus(margins[i, k]))
            levels[i, k] = np.float32(levels[i, k - 1] + gap)
    return levels


@kernel
def expectile(margins, targets, weights, parameter, bits):
    """Return the gradients of half the asymmetric squared error.

    A residual d of the level a has the weight 1 - a if it is at least 0, otherwise a. A margin of a
    gap moves its own expectile and all above it, so their gradients are added, times the slope of
    the gap, and their hessians, times its square.
    """
    n, n_outputs = margins.shape
    scale = 2.0**bits
    gradients = np.empty((n_outputs, n, 2), np.int64)
    levels = expectiles(margins)
    for i in range(n):
        for j in range(n_outputs):
            g, h = np.float32(0), np.float32(0)
            for k in range(j, n_outputs):
                d = np.float32(levels[i, k] - targets[i])
                level = np.float32(parameter[k])
                side = np.float32(ONE - level) if d >= 0 else level
                g = np.float32(g + np.float32(np.float32(side * d) * weights[i]))
                h = np.float32(h + np.float32(side * weights[i]))
            slope = ONE
            if j > 0:
                x = min(np.float32(-margins[i, j]), MAX_EXPONENT)
                slope = np.float32(ONE / np.float32(np.float32(np.exp(x)) + ONE))
            h = np.float32(np.float32(slope * slope) * h)
            store(gradients, j, i, np.float32(slope * g), h, scale)
    return gradients


@kernel
def expectile_losses(margins, targets, weights, parameter):
    """Return the asymmetric squared error, the mean over the levels."""
    n, n_outputs = margins.shape
    levels = expectiles(margins)
    losses = np.zeros(margins.shape[0])
    for i in range(n):
        for k in range(n_outputs):
            d = np.float64(levels[i, k]) - np.float64(targets[i])
            side = 1.0 - parameter[k] if d >= 0 else parameter[k]
            losses[i] += side * d * d * weights[i]
    return losses / n_outputs
