"""Squared distances to several points at a time, in vector registers.

Compilers turn loops over points into vector instructions only if they know the count of features.
Compiling for each number would take half a minute, so the instructions are chosen here. Each sum is
in the order of the features, as everywhere. As plain Python, the functions give the same results.

Each column of an array (n_features, `LANES`) is a point, in one lane. Unused lanes contain NaN, so
that no comparison finds them. Results are bits: the lowest is that of the first lane.
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic, overload

from fedlib.kernels import kernel
from fedlib.kernels.kd_tree import MAX_STACK, right_child
from fedlib.kernels.packing import ONE

LANES = 16  # two registers of AVX-512, or four of AVX
NO_LANES = np.uint64(0)

WORD, INDEX = ir.IntType(64), ir.IntType(32)
VECTOR = ir.VectorType(ir.DoubleType(), LANES)
UNDEFINED = ir.Constant(VECTOR, ir.Undefined)
ZEROS = ir.Constant(VECTOR, [0.0] * LANES)
ALL_FIRST = ir.Constant(ir.VectorType(INDEX, LANES), [0] * LANES)


@kernel
def first_lanes(size):
    """Return the bits of the first ``size`` lanes (at most `LANES`)."""
    return (ONE << np.uint64(size)) - ONE


@kernel
def load_columns(points, rows, columns):
    """Write the points in some rows (at most `LANES`) to the lanes; NaN to all others."""
    size = np.uint64(rows.size)
    for lane in range(size):
        row = np.uint64(rows[lane])
        for k in range(columns.shape[0]):
            columns[k, lane] = points[row, k]
    for lane in range(size, np.uint64(LANES)):  # any comparison with NaN is false
        for k in range(columns.shape[0]):
            columns[k, lane] = np.nan


@kernel
def begin_descent(root, lanes):
    """Return the stack of a descent that begins at a node: its nodes, and the lanes of each."""
    nodes, lanes_of = np.empty(MAX_STACK, np.int64), np.empty(MAX_STACK, np.uint64)
    nodes[0], lanes_of[0] = root, lanes
    return nodes, lanes_of


@kernel
def push_children(tree, node, lanes, stack, size):
    """Put the children of a node on a stack of this size, the left one on top; return the new size.

    The stack is that of `begin_descent`.
    """
    nodes, lanes_of = stack
    nodes[size], lanes_of[size] = right_child(tree, node), lanes
    nodes[size + 1], lanes_of[size + 1] = node + 1, lanes
    return size + 2


def lanes_within(columns, points, i, limit):
    """Return the lanes within a squared distance of row ``i`` of ``points`` (n, d)."""
    bits = NO_LANES
    for lane in range(LANES):
        total = 0.0
        for k in range(columns.shape[0]):
            total += (points[i, k] - columns[k, lane]) ** 2
        bits |= np.uint64(total <= limit) << np.uint64(lane)
    return bits


def lanes_near_box(lower, upper, limits, boxes, b):
    """Return the lanes within their limit of the nearest place of a box, and of the farthest.

    ``lower`` and ``upper`` (n_features, LANES) are the corners of the box of each lane; for points,
    both are the points. ``limits`` (LANES,) are squared distances. The other box is number ``b`` of
    ``boxes`` (n, 2, n_features).
    """
    near = whole = NO_LANES
    for lane in range(LANES):
        nearest = farthest = 0.0
        for k in range(lower.shape[0]):
            above, below = upper[k, lane] - boxes[b, 0, k], boxes[b, 1, k] - lower[k, lane]
            nearest += max(-above, 0.0, -below) ** 2
            farthest += max(above, below) ** 2
        near |= np.uint64(nearest <= limits[lane]) << np.uint64(lane)
        whole |= np.uint64(farthest <= limits[lane]) << np.uint64(lane)
    return near, whole


def _check_layout(*arrays):
    """Raise an error while compiling, unless arrays are in the order of C.

    The instructions compute the places of elements for this order only.
    """
    if any(array.layout != "C" for array in arrays):
        raise TypingError("points in lanes, and what is compared with them, must be in C order")


@overload(lanes_within)
def _compile_lanes_within(columns, points, i, limit):
    _check_layout(columns, points)
    return lambda columns, points, i, limit: _within(columns, points, columns.shape[0], i, limit)


@overload(lanes_near_box)
def _compile_lanes_near_box(lower, upper, limits, boxes, b):
    _check_layout(lower, upper, limits, boxes)
    return lambda lower, upper, limits, boxes, b: _near_box(
        lower, upper, limits, boxes, lower.shape[0], b
    )


@intrinsic
def _within(typing_context, columns, points, n_features, i, limit):
    """Compile `lanes_within`."""

    def generate(context, builder, signature, arguments):
        lanes = _Lanes(context, builder, signature, arguments)
        n_features, i, limit = arguments[2:]
        total, row = lanes.new_total(), builder.mul(i, n_features)
        with cgutils.for_range(builder, n_features) as loop:
            x = lanes.repeat_element(1, builder.add(row, loop.index))
            lanes.add_square(total, builder.fsub(x, lanes.load(0, loop.index)))
        return lanes.bits(total, lanes.repeat(limit))

    size = types.int64
    return types.uint64(columns, points, size, size, types.float64), generate


@intrinsic
def _near_box(typing_context, lower, upper, limits, boxes, n_features, b):
    """Compile `lanes_near_box`."""

    def generate(context, builder, signature, arguments):
        lanes = _Lanes(context, builder, signature, arguments)
        n_features, b = arguments[4:]
        nearest, farthest = lanes.new_total(), lanes.new_total()
        low = builder.mul(b, builder.mul(n_features, ir.Constant(WORD, 2)))
        high = builder.add(low, n_features)
        with cgutils.for_range(builder, n_features) as loop:
            k = loop.index
            above = builder.fsub(lanes.load(1, k), lanes.repeat_element(3, builder.add(low, k)))
            below = builder.fsub(lanes.repeat_element(3, builder.add(high, k)), lanes.load(0, k))
            inside = lanes.smaller(above, below)
            lanes.add_square(nearest, lanes.smaller(ZEROS, inside))
            lanes.add_square(farthest, lanes.larger(above, below))
        limits = lanes.load(2, ir.Constant(WORD, 0))
        found = lanes.bits(nearest, limits), lanes.bits(farthest, limits)
        return context.make_tuple(builder, signature.return_type, found)

    both = types.UniTuple(types.uint64, 2)
    return both(lower, upper, limits, boxes, types.int64, types.int64), generate


class _Lanes:
    """The instructions on lanes, for the arguments of one function."""

    def __init__(self, context, builder, signature, arguments):
        self.context, self.builder = context, builder
        self.signature, self.arguments = signature, arguments

    def data(self, number):
        """Return the address of the array, in the order of C, that is this argument."""
        make = self.context.make_array(self.signature.args[number])
        return make(self.context, self.builder, self.arguments[number]).data

    def load(self, number, row):
        """Return a row of LANES numbers of the array that is this argument."""
        first = self.builder.mul(row, ir.Constant(WORD, LANES))
        place = self.builder.gep(self.data(number), [first])
        # Only the alignment of a single float is certain.
        return self.builder.load(self.builder.bitcast(place, VECTOR.as_pointer()), align=8)

    def repeat(self, value):
        """Return a number in all lanes."""
        # LLVM's form of a broadcast: set the first lane, then shuffle it to all.
        first = self.builder.insert_element(UNDEFINED, value, ir.Constant(INDEX, 0))
        return self.builder.shuffle_vector(first, UNDEFINED, ALL_FIRST)

    def repeat_element(self, number, place):
        """Return in all lanes an element of the array that is this argument."""
        return self.repeat(self.builder.load(self.builder.gep(self.data(number), [place])))

    def larger(self, a, b):
        """Return the larger number of each lane; NaN in ``b`` stays NaN."""
        return self.builder.select(self.builder.fcmp_ordered(">", a, b), a, b)

    def smaller(self, a, b):
        """Return the smaller number of each lane; NaN in ``b`` stays NaN."""
        return self.builder.select(self.builder.fcmp_ordered("<", a, b), a, b)

    def new_total(self):
        """Return a total of 0 in each lane."""
        return cgutils.alloca_once_value(self.builder, ZEROS)

    def add_square(self, total, values):
        """Add the squares of some numbers to a total."""
        # Without fast-math flags: a fused instruction would round once instead of twice.
        square = self.builder.fmul(values, values)
        self.builder.store(self.builder.fadd(self.builder.load(total), square), total)

    def bits(self, total, limits):
        """Return in which lanes a total is at most the limit."""
        is_within = self.builder.fcmp_ordered("<=", self.builder.load(total), limits)
        return self.builder.zext(self.builder.bitcast(is_within, ir.IntType(LANES)), WORD)
