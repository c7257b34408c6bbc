"""Gradients, hessians and losses of the objectives of boosting, in XGBoost's arithmetic.

Every function takes the margins (n, outputs) of float32, the targets (n,), the weights (n,) of
float32 and the objective's ``parameter``. The gradients (outputs, n, 2) are integer multiples of
2**-bits, as in `fedlib.kernels.splits`; losses (n,) are those of the rows. Quantiles, absolute
errors and expectiles are in `fedlib.kernels.forests`.

The functions of survival times with censoring take ``targets`` (n, 2): the earliest and the latest
time of each row, of which the latter may be infinite. Their ``parameter`` is an array of two
numbers: the distribution of the logarithm of a time (`NORMAL`, `LOGISTIC`, `EXTREME`), and its
scale.

Source: A. Barnwal, H. Cho, T. Hocking, Survival regression with accelerated failure time model in
XGBoost, Journal of Computational and Graphical Statistics 31, 2022.
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


NORMAL, LOGISTIC, EXTREME = 0, 1, 2
LARGEST_STEP = 15.0  # XGBoost's, of a gradient and of a hessian
SMALLEST_HESSIAN = 1e-16  # XGBoost's
SMALLEST = 1e-12  # XGBoost's, of a probability and of a denominator
EXACT, RIGHT, LEFT, INTERVAL = 0, 1, 2, 3  # what is known of a time


@kernel
def density(z, distribution):
    """Return the density at z, its first derivative and its second one."""
    if distribution == NORMAL:
        p = math.exp(-z * z / 2.0) / math.sqrt(2.0 * math.pi)
        return p, -z * p, (z * z - 1.0) * p
    w = math.exp(z) if z < 710.0 else math.inf
    if math.isinf(w):
        return 0.0, 0.0, 0.0
    if distribution == EXTREME:
        p = w * math.exp(-w)
        return p, (1.0 - w) * p, (w * w - 3.0 * w + 1.0) * p
    if math.isinf(w * w):
        return 0.0, 0.0, 0.0
    p = w / ((1.0 + w) * (1.0 + w))
    return p, p * (1.0 - w) / (1.0 + w), p * (w * w - 4.0 * w + 1.0) / ((1.0 + w) * (1.0 + w))


@kernel
def probability(z, distribution):
    """Return the distribution function at z."""
    if distribution == NORMAL:
        return 0.5 * (1.0 + math.erf(z / math.sqrt(2.0)))
    w = math.exp(z) if z < 710.0 else math.inf
    if distribution == EXTREME:
        return 1.0 - math.exp(-w)
    return 1.0 if math.isinf(w) else w / (1.0 + w)


@kernel
def standardised(time, margin, sigma):
    """Return the distance of a time's logarithm from the prediction, in scales."""
    return (math.log(time) - margin) / sigma


@kernel
def known_of(low, high):
    """Return what is known of a time between two limits."""
    if low == high:
        return EXACT
    if math.isinf(high):
        return RIGHT
    return LEFT if low <= 0.0 else INTERVAL


@kernel
def limit_of_gradient(known, is_positive, sigma, distribution):
    """Return the gradient where a prediction is so far away that its formula is 0 / 0."""
    largest, smallest = LARGEST_STEP, -LARGEST_STEP
    if distribution != NORMAL:
        largest = 1.0 / sigma
    if distribution == LOGISTIC:
        smallest = -1.0 / sigma
    if is_positive:
        return 0.0 if known == LEFT else smallest
    return 0.0 if known == RIGHT else largest


@kernel
def limit_of_hessian(known, is_positive, sigma, distribution):
    """Return the hessian where a prediction is so far away that its formula is 0 / 0."""
    if distribution == LOGISTIC or known == (LEFT if is_positive else RIGHT):
        return SMALLEST_HESSIAN
    if distribution == NORMAL:
        return 1.0 / (sigma * sigma)
    return LARGEST_STEP if is_positive else SMALLEST_HESSIAN


@kernel
def quotient(numerator, denominator, limit):
    """Return a quotient, or its limit if it is not finite because of a small denominator."""
    value = numerator / denominator if denominator != 0.0 else math.nan
    if not math.isfinite(value) and (denominator < SMALLEST or math.isnan(denominator)):
        return limit
    return value


@kernel
def clip(value, low, high):
    """Return a number within limits; NaN, which no finite time has, is the lower one."""
    return min(max(value, low), high) if value == value else low


@kernel
def derivatives(low, high, margin, sigma, distribution):
    """Return the gradient and the hessian of a row's negative log-likelihood."""
    known = known_of(low, high)
    if known == EXACT:
        z = standardised(low, margin, sigma)
        p, first, second = density(z, distribution)
        is_positive = z > 0.0
        over, under = first, sigma * p
        over_h, under_h = -(p * second - first * first), sigma * sigma * p * p
    else:
        z_high, p_high, first_high, below_high = 0.0, 0.0, 0.0, 1.0
        z_low, p_low, first_low, below_low = 0.0, 0.0, 0.0, 0.0
        if known != RIGHT:
            z_high = standardised(high, margin, sigma)
            p_high, first_high, _ = density(z_high, distribution)
            below_high = probability(z_high, distribution)
        if low > 0.0:
            z_low = standardised(low, margin, sigma)
            p_low, first_low, _ = density(z_low, distribution)
            below_low = probability(z_low, distribution)
        is_positive = z_high > 0.0 or z_low > 0.0
        between, step = below_high - below_low, p_high - p_low
        over, under = step, sigma * between
        over_h = -(between * (first_high - first_low) - step * step)
        under_h = under * under
    g = quotient(over, under, limit_of_gradient(known, is_positive, sigma, distribution))
    h = quotient(over_h, under_h, limit_of_hessian(known, is_positive, sigma, distribution))
    return (
        clip(g, -LARGEST_STEP, LARGEST_STEP),
        clip(h, SMALLEST_HESSIAN, LARGEST_STEP),
    )


@kernel
def aft(margins, targets, weights, parameter, bits):
    """Return the gradients of the negative log-likelihood.

    A hessian above 0 is at least one unit, as XGBoost has no row without a hessian.
    """
    scale, distribution, sigma = 2.0**bits, int(parameter[0]), parameter[1]
    gradients = np.empty((1, margins.shape[0], 2), np.int64)
    for i in range(margins.shape[0]):
        if weights[i] == 0:
            gradients[0, i] = 0
            continue
        low, high = np.float64(targets[i, 0]), np.float64(targets[i, 1])
        g, h = derivatives(low, high, np.float64(margins[i, 0]), sigma, distribution)
        g, h = np.float32(np.float32(g) * weights[i]), np.float32(np.float32(h) * weights[i])
        store(gradients, 0, i, g, h, scale)
        gradients[0, i, 1] = max(gradients[0, i, 1], 1)
    return gradients


@kernel
def likelihood_loss(low, high, margin, sigma, distribution):
    """Return a row's negative log-likelihood, as XGBoost's metric ``aft-nloglik``."""
    if low == high:
        p = density(standardised(low, margin, sigma), distribution)[0] / (sigma * low)
        return -math.log(max(p, SMALLEST))
    above, below = 1.0, 0.0
    if not math.isinf(high):
        above = probability(standardised(high, margin, sigma), distribution)
    if low > 0.0:
        below = probability(standardised(low, margin, sigma), distribution)
    return -math.log(max(above - below, SMALLEST))


@kernel
def negative_log_likelihoods(log_times, targets, parameter):
    """Return the negative log-likelihood (n,) of each row at predicted logarithms of times (n,)."""
    losses = np.empty(len(log_times))
    for i in range(len(log_times)):
        low, high = np.float64(targets[i, 0]), np.float64(targets[i, 1])
        losses[i] = likelihood_loss(low, high, log_times[i], parameter[1], int(parameter[0]))
    return losses


@kernel
def aft_losses(margins, targets, weights, parameter):
    """Return the negative log-likelihood, for an exact time less its smallest value."""
    distribution, sigma = int(parameter[0]), parameter[1]
    losses = np.zeros(margins.shape[0])
    for i in range(margins.shape[0]):
        if weights[i] == 0:
            continue
        low, high = np.float64(targets[i, 0]), np.float64(targets[i, 1])
        loss = likelihood_loss(low, high, np.float64(margins[i, 0]), sigma, distribution)
        if low == high:
            loss += math.log(density(0.0, distribution)[0] / (sigma * low))
        losses[i] += max(loss, 0.0) * weights[i]
    return losses
