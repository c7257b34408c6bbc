"""Gradients, hessians and losses of the objectives of boosting, in XGBoost's arithmetic.

Every function takes the margins (n, outputs) of float32, the targets (n,), the weights (n,) of
float32 and the objective's ``parameter``. The gradients (outputs, n, 2) are integer multiples of
2**-bits, as in `fedlib.kernels.splits`; losses (n,) are those of the rows. Quantiles, absolute
errors and expectiles are in `fedlib.kernels.levels`, survival times in `fedlib.kernels.survival`.
"""

import math

import numpy as np

from fedlib.kernels import kernel
from fedlib.kernels.splits import (
    MAX_EXPONENT,
    MIN_HESSIAN,
    ONE,
    fill_gradients,
    sum_losses,
)

MIN_SQUARE = np.float32(1e-38)  # of a slope, or a mean: nothing is divided by 0


@kernel
def store(gradients, k, i, g, h, scale):
    """Store a gradient and a hessian as integers."""
    gradients[k, i, 0] = np.int64(math.floor(np.float64(g) * scale + 0.5))
    gradients[k, i, 1] = np.int64(math.floor(np.float64(h) * scale + 0.5))


@kernel
def logistic(margins, targets, weights, parameter, bits):
    """Return the gradients of the log-loss; ``targets`` of bool says which rows are positive."""
    gradients = np.empty((1, margins.shape[0], 2), np.int64)
    fill_gradients(margins[:, 0], targets, weights, bits, gradients[0])
    return gradients


@kernel
def logistic_loss(margins, targets, weights, parameter):
    """Return the log-loss; ``targets`` of bool says which rows are positive."""
    return sum_losses(margins[:, 0], targets, weights)


@kernel
def softmax(margins, targets, weights, parameter, bits):
    """Return the gradients of the log-loss; ``targets`` are the numbers of the classes."""
    n, n_classes = margins.shape
    scale = 2.0**bits
    gradients = np.empty((n_classes, n, 2), np.int64)
    for i in range(n):
        largest = max(np.float32(0), margins[i].max())
        total = 0.0
        for k in range(n_classes):
            total += np.float64(np.exp(np.float32(margins[i, k] - largest)))
        denominator = np.float32(total)
        if denominator == 0:  # all exponentials underflow; a division would raise an error
            denominator = ONE
        for k in range(n_classes):
            p = np.float32(np.exp(np.float32(margins[i, k] - largest)) / denominator)
            h = np.float32(np.float32(np.float32(2) * p) * np.float32(ONE - p)) * weights[i]
            g = np.float32(p - ONE) if targets[i] == k else p
            if weights[i] > 0:  # XGBoost's smallest hessian is not weighted; rows of 0 are out
                store(gradients, k, i, np.float32(g * weights[i]), max(h, MIN_HESSIAN), scale)
            else:
                store(gradients, k, i, np.float32(0), np.float32(0), scale)
    return gradients


@kernel
def softmax_losses(margins, targets, weights, parameter):
    """Return the log-loss; ``targets`` are the numbers of the classes."""
    losses = np.zeros(margins.shape[0])
    for i in range(margins.shape[0]):
        row = margins[i].astype(np.float64)
        largest = row.max()
        loss = math.log(np.exp(row - largest).sum()) + largest - row[targets[i]]
        losses[i] += max(loss, 0.0) * weights[i]
    return losses


@kernel
def squared_error(margins, targets, weights, parameter, bits):
    """Return the gradients of half the squared error."""
    scale = 2.0**bits
    gradients = np.empty((1, margins.shape[0], 2), np.int64)
    for i in range(margins.shape[0]):
        g = np.float32(np.float32(margins[i, 0] - targets[i]) * weights[i])
        store(gradients, 0, i, g, weights[i], scale)
    return gradients


@kernel
def squared_error_losses(margins, targets, weights, parameter):
    """Return the weighted sum of the squared errors."""
    losses = np.zeros(margins.shape[0])
    for i in range(margins.shape[0]):
        losses[i] += (np.float64(margins[i, 0]) - targets[i]) ** 2 * weights[i]
    return losses


@kernel
def pseudo_huber(margins, targets, weights, parameter, bits):
    """Return the gradients of the pseudo-Huber loss; ``parameter`` is its slope.

    A slope below 1e-19 counts as 1e-19.
    """
    scale = 2.0**bits
    gradients = np.empty((1, margins.shape[0], 2), np.int64)
    slope = np.float32(parameter)
    slope_squared = max(np.float32(slope * slope), MIN_SQUARE)
    for i in range(margins.shape[0]):
        z = np.float32(margins[i, 0] - targets[i])
        z_squared = np.float32(z * z)
        root = np.float32(np.sqrt(np.float32(ONE + np.float32(z_squared / slope_squared))))
        denominator = np.float32(np.float32(slope_squared + z_squared) * root)
        g = np.float32(np.float32(z / root) * weights[i])
        h = np.float32(np.float32(slope_squared / denominator) * weights[i])
        store(gradients, 0, i, g, h, scale)
    return gradients


@kernel
def pseudo_huber_losses(margins, targets, weights, parameter):
    """Return the pseudo-Huber loss; ``parameter`` is its slope."""
    losses = np.zeros(margins.shape[0])
    for i in range(margins.shape[0]):
        z = (np.float64(margins[i, 0]) - targets[i]) / parameter
        losses[i] += parameter**2 * (math.sqrt(1 + z * z) - 1) * weights[i]
    return losses


@kernel
def poisson(margins, targets, weights, parameter, bits):
    """Return the gradients of the Poisson deviance; ``parameter`` is the maximum step."""
    scale = 2.0**bits
    gradients = np.empty((1, margins.shape[0], 2), np.int64)
    for i in range(margins.shape[0]):
        mean = np.float32(np.exp(margins[i, 0]))
        g = np.float32(np.float32(mean - targets[i]) * weights[i])
        larger = np.float32(np.exp(np.float32(margins[i, 0] + np.float32(parameter))))
        store(gradients, 0, i, g, np.float32(larger * weights[i]), scale)
    return gradients


@kernel
def poisson_losses(margins, targets, weights, parameter):
    """Return half the Poisson deviance."""
    losses = np.zeros(margins.shape[0])
    for i in range(margins.shape[0]):
        m, y = np.float64(margins[i, 0]), np.float64(targets[i])
        loss = math.exp(m) - y
        if y > 0:
            loss += y * (math.log(y) - m)
        losses[i] += max(loss, 0.0) * weights[i]
    return losses


@kernel
def logistic_of_fractions(margins, targets, weights, parameter, bits):
    """Return the gradients of the log-loss of fractions in 0..1."""
    scale = 2.0**bits
    gradients = np.empty((1, margins.shape[0], 2), np.int64)
    for i in range(margins.shape[0]):
        x = min(-margins[i, 0], MAX_EXPONENT)
        p = np.float32(ONE / np.float32(np.float32(np.exp(x)) + ONE))
        g = np.float32(np.float32(p - targets[i]) * weights[i])
        h = np.float32(max(np.float32(p * np.float32(ONE - p)), MIN_HESSIAN) * weights[i])
        store(gradients, 0, i, g, h, scale)
    return gradients


@kernel
def logistic_of_fractions_losses(margins, targets, weights, parameter):
    """Return the log-loss of fractions in 0..1."""
    losses = np.zeros(margins.shape[0])
    for i in range(margins.shape[0]):
        m = np.float64(margins[i, 0])
        loss = max(m, 0.0) - m * targets[i] + math.log1p(math.exp(-abs(m)))
        losses[i] += loss * weights[i]
    return losses


@kernel
def gamma(margins, targets, weights, parameter, bits):
    """Return the gradients of the gamma deviance."""
    scale = 2.0**bits
    gradients = np.empty((1, margins.shape[0], 2), np.int64)
    for i in range(margins.shape[0]):
        mean = max(np.float32(np.exp(margins[i, 0])), MIN_SQUARE)
        ratio = np.float32(targets[i] / mean)
        g = np.float32(np.float32(ONE - ratio) * weights[i])
        store(gradients, 0, i, g, np.float32(ratio * weights[i]), scale)
    return gradients


@kernel
def gamma_losses(margins, targets, weights, parameter):
    """Return half the gamma deviance."""
    losses = np.zeros(margins.shape[0])
    for i in range(margins.shape[0]):
        log_ratio = math.log(np.float64(targets[i])) - np.float64(margins[i, 0])
        losses[i] += max(math.exp(log_ratio) - log_ratio - 1, 0.0) * weights[i]
    return losses


@kernel
def tweedie(margins, targets, weights, parameter, bits):
    """Return the gradients of the Tweedie deviance; ``parameter`` is its variance power."""
    scale = 2.0**bits
    gradients = np.empty((1, margins.shape[0], 2), np.int64)
    first = np.float32(ONE - np.float32(parameter))
    second = np.float32(np.float32(2) - np.float32(parameter))
    for i in range(margins.shape[0]):
        m, y = margins[i, 0], targets[i]
        of_target = np.float32(np.exp(np.float32(first * m)))
        of_row = np.float32(np.exp(np.float32(second * m)))
        g = np.float32(np.float32(-y * of_target) + of_row)
        h = np.float32(np.float32(np.float32(-y * first) * of_target) + np.float32(second * of_row))
        store(gradients, 0, i, np.float32(g * weights[i]), np.float32(h * weights[i]), scale)
    return gradients


@kernel
def tweedie_losses(margins, targets, weights, parameter):
    """Return half the Tweedie deviance; ``parameter`` is its variance power, inside of 1..2."""
    first, second = 1.0 - parameter, 2.0 - parameter
    losses = np.zeros(margins.shape[0])
    for i in range(margins.shape[0]):
        m, y = np.float64(margins[i, 0]), np.float64(targets[i])
        loss = math.exp(second * m) / second - y * math.exp(first * m) / first
        if y > 0:
            loss += y**second / (first * second)
        losses[i] += max(loss, 0.0) * weights[i]
    return losses
