"""The addition of a gradient and a hessian at once, in one vector register.

Histograms consist of such additions, and numba makes two of each. At once they take a third less
time.
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

PAIR = ir.VectorType(ir.IntType(64), 2)


def add_pair(sums, i, g, h):
    """Add ``g`` and ``h`` to the row ``i`` of sums (n, 2) of int64, in the order of C."""
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
