"""Instructions that Numba lacks. Loads, stores and copies are for contiguous arrays of uint8.

Only compiled functions call them. Their bodies import Numba and llvmlite, so importing this module loads neither.
"""

from .compile_cpu import intrinsic


@intrinsic
def load_u64(typing, array, i):
    """The 8 bytes array[i : i + 8] as a little-endian uint64, at any alignment."""
    from llvmlite import ir
    from numba import types

    from .numba_private import array_argument

    def generate(context, builder, signature, arguments):
        data = array_argument(0, context, builder, signature, arguments).data
        at = builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(64).as_pointer())
        return builder.load(at, align=1)

    return types.uint64(array, types.int64), generate


@intrinsic
def store_u64(typing, array, i, value):
    """Set the 8 bytes array[i : i + 8] to a uint64, little-endian, at any alignment."""
    from llvmlite import ir
    from numba import types

    from .numba_private import array_argument

    def generate(context, builder, signature, arguments):
        data = array_argument(0, context, builder, signature, arguments).data
        at = builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(64).as_pointer())
        builder.store(arguments[2], at, align=1)
        return context.get_dummy_value()

    return types.void(array, types.int64, types.uint64), generate


@intrinsic
def copy_from(typing, array, i, address, nbytes):
    """Copy nbytes bytes from a memory address to array[i : i + nbytes]."""
    from llvmlite import ir
    from numba import types

    from .numba_private import array_argument

    def generate(context, builder, signature, arguments):
        data = array_argument(0, context, builder, signature, arguments).data
        pointer, size, is_volatile = ir.IntType(8).as_pointer(), ir.IntType(64), ir.IntType(1)(0)
        source = builder.inttoptr(arguments[2], pointer)
        copy = builder.module.declare_intrinsic("llvm.memcpy", [pointer, pointer, size])
        builder.call(copy, [builder.gep(data, [arguments[1]]), source, arguments[3], is_volatile])
        return context.get_dummy_value()

    return types.void(array, types.int64, types.int64, types.int64), generate


@intrinsic
def prefetch(typing, array, i):
    """Start to load array[i], which will be read soon, into the cache."""
    from llvmlite import ir
    from numba import types

    from .numba_private import array_argument

    def generate(context, builder, signature, arguments):
        data = array_argument(0, context, builder, signature, arguments).data
        at = builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(8).as_pointer())
        flag = ir.IntType(32)
        form = ir.FunctionType(ir.VoidType(), [at.type, flag, flag, flag])
        to_read, keep, as_data = flag(0), flag(3), flag(1)
        builder.call(builder.module.declare_intrinsic("llvm.prefetch", [at.type], form), [at, to_read, keep, as_data])
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


@intrinsic
def multiply_add(typing, a, b, c):
    """The float32 a * b + c, rounded once."""
    from llvmlite import ir
    from numba import types

    def generate(context, builder, signature, arguments):
        form = ir.FunctionType(ir.FloatType(), [ir.FloatType()] * 3)
        return builder.call(builder.module.declare_intrinsic("llvm.fma", [ir.FloatType()], form), arguments)

    return types.float32(types.float32, types.float32, types.float32), generate


@intrinsic
def power_of_2(typing, a):
    """The float32 2**(j - 127), where j is the lowest 8 bits of a float32's bits."""
    from llvmlite import ir
    from numba import types

    def generate(context, builder, signature, arguments):
        word = ir.IntType(32)
        return builder.bitcast(builder.shl(builder.bitcast(arguments[0], word), word(23)), ir.FloatType())

    return types.float32(types.float32), generate


@intrinsic
def from_float32(typing, bits):
    """The float32 of these bits (an integer of 32 bits or fewer)."""
    from llvmlite import ir
    from numba import types

    def generate(context, builder, signature, arguments):
        return builder.bitcast(_resized(builder, arguments[0], ir.IntType(32)), ir.FloatType())

    return types.float32(bits), generate


@intrinsic
def from_bfloat16(typing, bits):
    """The float32 whose upper 16 bits are the lowest 16 of `bits`."""
    from llvmlite import ir
    from numba import types

    def generate(context, builder, signature, arguments):
        word = ir.IntType(32)
        return builder.bitcast(builder.shl(_resized(builder, arguments[0], word), word(16)), ir.FloatType())

    return types.float32(bits), generate


@intrinsic
def from_float16(typing, bits):
    """The float32 that equals the float16 of the lowest 16 of `bits`."""
    from llvmlite import ir
    from numba import types

    def generate(context, builder, signature, arguments):
        word, single = ir.IntType(32), ir.FloatType()
        both = _resized(builder, arguments[0], word)
        size = builder.and_(both, word(0x7FFF))
        sign = builder.shl(builder.and_(both, word(0x8000)), word(16))
        # The exponent is too low by 112; subnormal numbers become normal by the product.
        value = builder.fmul(builder.bitcast(builder.shl(size, word(13)), single), single(2.0**112))
        infinite = builder.icmp_unsigned(">=", size, word(0x7C00))
        bits_ = builder.or_(builder.bitcast(value, word), builder.select(infinite, word(0x7F800000), word(0)))
        return builder.bitcast(builder.or_(bits_, sign), single)

    return types.float32(bits), generate


def _resized(builder, number, form):
    """Return an unsigned integer as another type of integer."""
    if number.type.width > form.width:
        return builder.trunc(number, form)
    return number if number.type.width == form.width else builder.zext(number, form)


@intrinsic
def trailing_zeros(typing, x):
    """The number of zeros below the lowest set bit of a uint64 that is not 0."""
    from llvmlite import ir
    from numba import types

    def generate(context, builder, signature, arguments):
        return builder.cttz(arguments[0], ir.IntType(1)(1))

    return types.int64(types.uint64), generate


@intrinsic
def leading_zeros(typing, x):
    """The number of zeros above the highest set bit of a uint64 that is not 0."""
    from llvmlite import ir
    from numba import types

    def generate(context, builder, signature, arguments):
        return builder.ctlz(arguments[0], ir.IntType(1)(1))

    return types.int64(types.uint64), generate


@intrinsic
def multiply_high(typing, a, b):
    """The upper 64 bits of the product of two uint64."""
    from llvmlite import ir
    from numba import types

    def generate(context, builder, signature, arguments):
        wide = ir.IntType(128)
        product = builder.mul(*(builder.zext(factor, wide) for factor in arguments))
        return builder.trunc(builder.lshr(product, wide(64)), ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), generate
