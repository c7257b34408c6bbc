"""Instructions of the processor that numba does not choose by itself.

As plain Python, the functions here give the same results.
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

PAIR = ir.VectorType(ir.IntType(64), 2)
WORD = ir.IntType(64)
BYTES = ir.IntType(8).as_pointer()
LINE = 64  # bytes that a cache loads together


def add_pair(sums, i, g, h):
    """Add ``g`` and ``h`` to the row ``i`` of sums (n, 2) of int64, in the order of C.

    Both are added in one vector register. Histograms consist of such additions, and take a third
    less time than with two separate ones.
    """
    sums[i, 0] += g
    sums[i, 1] += h


@overload(add_pair)
def _compile_add_pair(sums, i, g, h):
    return lambda sums, i, g, h: _add_at_once(sums, i, g, h)


@intrinsic
def _add_at_once(typing_context, sums, i, g, h):
    def generate(context, builder, signature, arguments):
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        pair = ir.Constant(PAIR, ir.Undefined)
        for k, value in enumerate(arguments[2:]):
            pair = builder.insert_element(pair, value, ir.Constant(ir.IntType(32), k))
        first = builder.mul(arguments[1], ir.Constant(ir.IntType(64), 2))
        place = builder.bitcast(builder.gep(array.data, [first]), PAIR.as_pointer())
        builder.store(builder.add(builder.load(place, align=8), pair), place, align=8)
        return context.get_dummy_value()

    return types.void(sums, types.uint64, types.int64, types.int64), generate


def prefetch_row(table, i):
    """Start to load the row ``i`` of a table (n, d) into the fastest cache.

    The elements of a row are next to each other.

    Nothing waits for it. When rows follow each other in an order that the processor cannot predict,
    it pays to ask for a row some rows before it is needed.
    """


@overload(prefetch_row, inline="always")  # as a call it would take as long as it saves
def _compile_prefetch_row(table, i):
    def compiled(table, i):
        first = i * table.strides[0]
        last = first + table.shape[1] * table.itemsize - 1
        for place in range(first, last, LINE):
            _prefetch(table, place)
        _prefetch(table, last)

    return compiled


@intrinsic
def _prefetch(typing_context, table, place):
    """Start to load the byte number ``place`` of a table."""

    def generate(context, builder, signature, arguments):
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        address = builder.gep(builder.bitcast(array.data, BYTES), [arguments[1]])
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [BYTES, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", [BYTES], kind)
        to_read, into_all_caches, data = (ir.Constant(number, value) for value in (0, 3, 1))
        builder.call(function, [address, to_read, into_all_caches, data])
        return context.get_dummy_value()

    return types.void(table, types.int64), generate


def read_integer(table, place):
    """Return the int64 in the eight bytes of a table from ``place`` on, the lowest byte first."""
    return table[place : place + 8].view(np.int64)[0]


def write_integer(table, place, value):
    """Write an int64 into the eight bytes of a table from ``place`` on, the lowest byte first."""
    table[place : place + 8] = np.array([value], np.int64).view(np.uint8)


@overload(read_integer, inline="always")
def _compile_read_integer(table, place):
    return lambda table, place: _read(table, place)


@overload(write_integer, inline="always")
def _compile_write_integer(table, place, value):
    return lambda table, place, value: _write(table, place, value)


@intrinsic
def _read(typing_context, table, place):
    def generate(context, builder, signature, arguments):
        return builder.load(_address(context, builder, signature, arguments), align=1)

    return types.int64(table, types.int64), generate


@intrinsic
def _write(typing_context, table, place, value):
    def generate(context, builder, signature, arguments):
        address = _address(context, builder, signature, arguments)
        builder.store(arguments[2], address, align=1)
        return context.get_dummy_value()

    return types.void(table, types.int64, types.int64), generate


def _address(context, builder, signature, arguments):
    """Return the address of an int64 in a table of bytes: the first argument, from the second."""
    array = context.make_array(signature.args[0])(context, builder, arguments[0])
    return builder.bitcast(builder.gep(array.data, [arguments[1]]), WORD.as_pointer())
