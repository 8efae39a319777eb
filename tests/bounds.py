"""How far a product may be from the exact one, for every comparison with torch.

The bound of an element C is u * |C| + 2 * sqrt(K) * 2^-24 * (|A| |B|): it is rounded to its dtype once, among
subnormals as coarsely as at the smallest normal number, and its K terms are summed in fp32. What a function has for
|A| |B| and for K is that function itself, of the operands' absolute values, and of ones; a derivative's are the
derivative's.
"""

import torch
from torch.utils._pytree import tree_map


def assert_within(found, expected, magnitude, terms, roundings=1):
    """found: in its dtype; then in double the exact result, that of the absolute values, and the number of terms."""
    assert found.shape == expected.shape
    unit = torch.finfo(found.dtype).eps / 2
    smallest = torch.finfo(found.dtype).smallest_normal  # below it, units stay as large as there
    bound = roundings * unit * expected.abs().clamp(min=smallest) + 2 * terms.sqrt() * 2**-24 * magnitude
    error = (found.double() - expected).abs()
    wrong = ~(error <= bound)  # NaN too
    if wrong.any():
        at = tuple(wrong.nonzero()[0].tolist())
        raise AssertionError(
            f"at {at}: {found[at].item()!r}, exactly {expected[at].item()!r}, {bound[at].item():.3g} apart are allowed;"
            f" {int(wrong.sum())} of {found.numel()} elements are wrong"
        )


def assert_product(found, a, b, c=None, alpha=1.0, beta=1.0):
    """found = alpha * a @ b + beta * c."""

    def exact(a, b, c, alpha, beta):
        return alpha * (a @ b) + (0 if c is None else beta * c)

    doubles = [None if x is None else x.detach().double() for x in (a, b, c)]
    ones = [None if x is None else torch.ones_like(x) for x in doubles]
    sizes = [None if x is None else x.abs() for x in doubles]
    assert_within(
        found.detach(), exact(*doubles, alpha, beta), exact(*sizes, abs(alpha), abs(beta)), exact(*ones, 1.0, 1.0)
    )


def assert_like_torch(function, reference, args, kwargs, derivatives=2):
    """function(*args) and its derivatives up to the second are the reference's, which is linear in each tensor."""
    leaves = []

    def leaf(x):
        if isinstance(x, torch.Tensor):
            leaves.append(x.detach().requires_grad_(derivatives > 0))
            return leaves[-1]
        return x

    args, kwargs = tree_map(leaf, (tuple(args), kwargs))
    weights = torch.randn(reference(*args, **kwargs).shape, device=leaves[0].device).to(leaves[0].dtype)
    seconds = [torch.randn_like(x) for x in leaves]

    def everything(of, convert, number):
        """The result of `of` and its derivatives, with every tensor and number converted."""
        twins = {id(x): convert(x.detach()).requires_grad_(derivatives > 0) for x in leaves}

        def twin(x):
            if isinstance(x, torch.Tensor):
                return twins[id(x)]
            return number(x) if isinstance(x, float) else x

        given = list(twins.values())
        twin_args, twin_kwargs = tree_map(twin, (args, kwargs))
        result = of(*twin_args, **twin_kwargs)
        if not derivatives:
            return [result.detach()]
        weight = convert(weights).requires_grad_()
        first = torch.autograd.grad(result, given, weight, create_graph=derivatives == 2)
        if derivatives == 1:
            return [x.detach() for x in (result, *first)]
        loss = [convert(x) for x in seconds]
        second = torch.autograd.grad(first, [*given, weight], loss, allow_unused=True, materialize_grads=True)
        return [x.detach() for x in (result, *first, *second)]

    found = everything(function, lambda x: x, lambda x: x)
    exact = everything(reference, lambda x: x.double(), lambda x: x)
    sizes = everything(reference, lambda x: x.double().abs(), abs)
    terms = everything(reference, lambda x: torch.ones_like(x, dtype=torch.float64), lambda x: 1.0)
    assert len(found) == len(exact)
    # A second derivative may be a sum of two products, each of them rounded.
    for i, (x, *about) in enumerate(zip(found, exact, sizes, terms, strict=True)):
        assert_within(x, *about, roundings=1 if i == 0 else 3)
