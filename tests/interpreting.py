"""A faster interpreter: the same operations on the same values, without what Triton works out anew for each of them.

With NumPy arrays of a few tiles almost all the time of an interpreted kernel goes to types, shapes and patches of
`triton.language`. What follows remembers them; a kernel takes a third of the time.
"""

import functools
import inspect
from types import SimpleNamespace

import numpy as np
import triton.language as tl
from triton.language import core
from triton.runtime import interpreter


def speed_up():
    """For all launches of this process."""
    remap_once()
    check_no_overflow_in_vain()
    remember_numpy_dtypes()
    remember_types()
    remember_types_of_operations()
    remember_conversions()
    return_unchanged()


def remap_once():
    """Makes the interpreter remap triton.language once for a launch, not once more for each call of a device function.

    The second time changes nothing, since what is remapped is no builtin any more. The functions that replace others
    are made once for all launches.
    """
    remap = interpreter._patch_lang
    both = SimpleNamespace(__globals__={"tl": tl, "core": core})  # what any kernel or device function may see
    visible, launching, made = set(), [], []

    def remapped():
        scope = interpreter._LangPatchScope()
        for obj, name, original, new in made:
            scope.set_attr(obj, name, new)
            if scope._changes[-1][2] is not original:  # somebody else changed it meanwhile
                scope.restore()
                made.clear()
                break
        if not made:
            scope, found = remap(both), {}
            for obj, name, original in scope._changes:
                first = found.get((id(obj), name), (obj, name, original))
                found[id(obj), name] = (*first[:3], inspect.getattr_static(obj, name))
            made.extend(found.values())
        return scope

    @functools.wraps(remap)
    def once(fn):
        if fn not in visible:
            if not any(value is tl or value is core for value in fn.__globals__.values()):
                return remap(fn)  # which says so
            visible.add(fn)
        if launching:  # a device function
            return interpreter._LangPatchScope()
        scope = remapped()
        restore = scope.restore
        launching.append(scope)

        def restored():
            launching.pop()
            restore()

        scope.restore = restored
        return scope

    interpreter._patch_lang = once


def check_no_overflow_in_vain():
    """Skips the check of integer sums and products for overflow. Triton reads its outcome with TRITON_DEBUG=1 only."""
    semantic = interpreter.interpreter_semantic
    check = semantic.binary_op_sanitize_overflow_impl

    def checked(*args):
        if semantic.builder.options.debug:
            check(*args)

    semantic.binary_op_sanitize_overflow_impl = checked


def remember_numpy_dtypes():
    """Makes the table of NumPy's dtypes once, not for each operation."""
    find, known = interpreter._get_np_dtype, {}

    @functools.wraps(find)
    def found(of):
        element = of.element_ty if type(of) is tl.block_type else of
        if type(element) is not tl.dtype:
            return find(of)
        if element.name not in known:
            known[element.name] = find(element)
        return known[element.name]

    interpreter._get_np_dtype = found


def remember_types():
    """Checks each shape of blocks, and writes its name, once for each type of elements."""
    make_type, make_tensor = tl.block_type.__init__, tl.tensor.__init__
    types, of_scalars = {}, {}

    def type_made(self, element_ty, shape):
        sizes = tuple([x.value if type(x) is tl.constexpr else x for x in shape])
        is_usual = type(element_ty) is tl.dtype and type(shape) in (list, core.tuple)
        if not is_usual or not all(type(x) is int for x in sizes):
            return make_type(self, element_ty, shape)
        key = element_ty.name, sizes
        if key not in types:
            make_type(self, element_ty, shape)
            types[key] = vars(self) | {"sizes": sizes, "of_tensors": {}}
        vars(self).update(types[key])

    def tensor_made(self, handle, type):
        known = vars(type).get("of_tensors") if type.is_block() else of_scalars
        if known:
            vars(self).update(known)
            self.handle, self.type, self.dtype = handle, type, type.scalar
            return
        make_tensor(self, handle, type)
        if known is not None:
            known.update({name: value for name, value in vars(self).items() if name not in ("handle", "type", "dtype")})

    tl.block_type.__init__ = functools.wraps(make_type)(type_made)
    tl.tensor.__init__ = functools.wraps(make_tensor)(tensor_made)


def remember_types_of_operations():
    """Finds the dtype that an operation converts its operands to once for each pair of their dtypes."""
    semantic = interpreter.interpreter_semantic
    find, known = semantic.computation_type_impl, {}

    def found(a, a_is_scalar, b, b_is_scalar, div_or_mod):
        key = a.name, a_is_scalar, b.name, b_is_scalar, div_or_mod
        if key not in known:
            known[key] = find(a, a_is_scalar, b, b_is_scalar, div_or_mod)
        return known[key]

    semantic.computation_type_impl = found


def remember_conversions():
    """Converts every value of a dtype of 8 or 16 bits once, into a table for each dtype that it is converted to."""
    convert, known = interpreter._convert_float, {}

    @functools.wraps(convert)
    def converted(values, dtype, to, rounding):
        if dtype.primitive_bitwidth > 16:
            return convert(values, dtype, to, rounding)
        codes = {8: np.uint8, 16: np.uint16}[dtype.primitive_bitwidth]
        key = dtype.name, to.name, rounding
        if key not in known:
            known[key] = convert(np.arange(2**dtype.primitive_bitwidth, dtype=codes), dtype, to, rounding)
        return np.asarray(known[key][values.view(codes)])

    interpreter._convert_float = converted


def return_unchanged():
    """Returns tensors of equal shapes, casts to the same dtype, and what is no constexpr, at once."""
    semantic = interpreter.interpreter_semantic
    broadcast, cast, unwrap = semantic.broadcast_impl_value, semantic.cast, core._unwrap_if_constexpr
    plain = frozenset({tl.tensor, tl.dtype, tl.block_type, tl.pointer_type, int, float, bool, str, type(None)})

    def broadcasted(lhs, rhs):
        sizes = vars(lhs.type).get("sizes")
        return (lhs, rhs) if sizes is not None and sizes == vars(rhs.type).get("sizes") else broadcast(lhs, rhs)

    def casted(value, to, *args, **options):
        return value if value.type.scalar is to.scalar else cast(value, to, *args, **options)

    @functools.wraps(unwrap)
    def unwrapped(x):
        return x if type(x) in plain else unwrap(x)

    semantic.broadcast_impl_value, semantic.cast = broadcasted, casted
    core._unwrap_if_constexpr = unwrapped
