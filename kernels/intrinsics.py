"""Instructions that Numba lacks; all but `prefetch` are for contiguous arrays of uint8.

Compiled functions alone call them. Their bodies import Numba and llvmlite, so importing this module loads neither.
"""

from .compile import intrinsic


@intrinsic
def load_u64(typing, array, i):
    """The 8 bytes array[i : i + 8] as a little-endian uint64, at any alignment."""
    from llvmlite import ir
    from numba import types

    def generate(context, builder, signature, arguments):
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        at = builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(64).as_pointer())
        return builder.load(at, align=1)

    return types.uint64(array, types.int64), generate


@intrinsic
def store_u64(typing, array, i, value):
    """Set the 8 bytes array[i : i + 8] to a uint64, little-endian, at any alignment."""
    from llvmlite import ir
    from numba import types

    def generate(context, builder, signature, arguments):
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        at = builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(64).as_pointer())
        builder.store(arguments[2], at, align=1)
        return context.get_dummy_value()

    return types.void(array, types.int64, types.uint64), generate


@intrinsic
def copy_from(typing, array, i, address, nbytes):
    """Copy nbytes bytes from a memory address to array[i : i + nbytes]."""
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils

    def generate(context, builder, signature, arguments):
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        source = builder.inttoptr(arguments[2], ir.IntType(8).as_pointer())
        cgutils.raw_memcpy(builder, builder.gep(data, [arguments[1]]), source, arguments[3], 1)
        return context.get_dummy_value()

    return types.void(array, types.int64, types.int64, types.int64), generate


@intrinsic
def prefetch(typing, array, i):
    """Start to load array[i] into the cache, because it is read soon."""
    from llvmlite import ir
    from numba import types

    def generate(context, builder, signature, arguments):
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        at = builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(8).as_pointer())
        flag = ir.IntType(32)
        form = ir.FunctionType(ir.VoidType(), [at.type, flag, flag, flag])
        to_read, keep, as_data = flag(0), flag(3), flag(1)
        builder.call(builder.module.declare_intrinsic("llvm.prefetch", [at.type], form), [at, to_read, keep, as_data])
        return context.get_dummy_value()

    return types.void(array, types.int64), generate
