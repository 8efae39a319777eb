"""Layers and models with experts for tests, as transformers stores them, with its interface of experts."""

import functools

import torch
from torch import nn

EXPERTS, WIDTH, INNER = 4, 32, 64
FORMS = ("plain", "transposed", "biased", "own gate", "no gate")


def interface(has_gate=True, has_bias=False, is_transposed=False, has_post_expert_norm=False):
    """As `use_experts_implementation` of transformers, whose forward is never that of these tests."""

    def wrapper(cls):
        original_init, original_forward = cls.__init__, cls.forward

        @functools.wraps(original_init)
        def init(self, *args, **kwargs):
            original_init(self, *args, **kwargs)
            self.has_gate, self.has_bias, self.is_transposed = has_gate, has_bias, is_transposed
            self.has_post_expert_norm, self._is_expert_parallel = has_post_expert_norm, False

        @functools.wraps(original_forward)
        def forward(self, *args, **kwargs):
            return original_forward(self, *args, **kwargs)

        if not hasattr(cls, "_apply_gate"):
            cls._apply_gate = lambda self, rows: (lambda gate, up: self.act_fn(gate) * up)(*rows.chunk(2, -1))
        cls.__init__, cls.forward = init, forward
        return cls

    return wrapper


def parameter(*shape):
    return nn.Parameter(torch.randn(shape) / shape[-1] ** 0.5)


class Bare(nn.Module):
    """Parameters as transformers names them, and a forward that multiplies every token by its experts."""

    def __init__(self):
        super().__init__()
        self.num_experts = EXPERTS
        self.act_fn = nn.SiLU()
        first = "gate_up_proj" if self.gated else "up_proj"
        outputs = 2 * INNER if self.gated else INNER
        shapes = {first: (outputs, WIDTH), "down_proj": (WIDTH, INNER)}
        for name, shape in shapes.items():
            setattr(self, name, parameter(EXPERTS, *(reversed(shape) if self.turned else shape)))
            if self.biased:
                setattr(self, f"{name}_bias", parameter(EXPERTS, shape[0]))

    gated, turned, biased = True, False, False

    def forward(self, hidden_states, top_k_index, top_k_weights):
        out = torch.zeros_like(hidden_states)
        for token, (indices, weights) in enumerate(zip(top_k_index.tolist(), top_k_weights, strict=True)):
            for expert, weight in zip(indices, weights, strict=True):
                rows = self.project("gate_up_proj" if self.gated else "up_proj", hidden_states[token], expert)
                rows = self._apply_gate(rows) if self.gated else self.act_fn(rows)
                out[token] += weight * self.project("down_proj", rows, expert)
        return out

    def project(self, name, row, expert):
        weight = getattr(self, name)[expert]
        found = row @ (weight if self.turned else weight.t())
        return found + getattr(self, f"{name}_bias")[expert] if self.biased else found


@interface()
class Plain(Bare):
    pass


@interface(is_transposed=True)
class Transposed(Bare):
    turned = True


@interface(has_bias=True)
class Biased(Bare):
    biased = True


@interface(has_bias=True, is_transposed=True)
class OwnGate(Bare):
    """As that of gpt-oss: gates and values take turns."""

    biased = turned = True

    def __init__(self):
        super().__init__()
        self.limit = 0.5

    def _apply_gate(self, rows):
        gate, up = rows[..., ::2].clamp(max=self.limit), rows[..., 1::2].clamp(-self.limit, self.limit)
        return (up + 1) * gate * torch.sigmoid(gate * 1.7)


@interface(has_gate=False)
class NoGate(Bare):
    gated = False


CLASSES = dict(zip(FORMS, (Plain, Transposed, Biased, OwnGate, NoGate), strict=True))


class Router(nn.Module):
    def __init__(self, top_k=2):
        super().__init__()
        self.top_k = top_k
        self.weight = parameter(EXPERTS, WIDTH)

    def forward(self, x):
        weights, index = torch.topk(torch.softmax(x @ self.weight.t(), -1, dtype=torch.float), self.top_k)
        return weights.to(x.dtype), index


class Layer(nn.Module):
    def __init__(self, form="plain"):
        super().__init__()
        self.gate, self.experts = Router(), CLASSES[form]()

    def forward(self, x):
        weights, index = self.gate(x)
        return x + self.experts(x, index, weights)


class Model(nn.Module):
    def __init__(self, form="plain", layers=1):
        super().__init__()
        self.layers = nn.ModuleList(Layer(form) for _ in range(layers))
        self.head = nn.Linear(WIDTH, 32)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)
