"""Models in several ways: what of it needs no GPU. Where transformers is installed, tiny models of it run as well."""

from types import SimpleNamespace

import pytest
import torch

import tritonmm
from tritonmm.autotune.serving import compare, report, steps
from tritonmm.autotune.serving.compare import Asked, Row
from tritonmm.autotune.serving.models import MODELS, Model
from tritonmm.nn.linear import WeightOnlyLinear

CPU = torch.device("cpu")


class Toy(torch.nn.Module):
    """What is used of a model of transformers."""

    config = SimpleNamespace(vocab_size=40)

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(40, 128)
        self.inner, self.lm_head = torch.nn.Linear(128, 128), torch.nn.Linear(128, 40)

    def set_attn_implementation(self, name):
        self.attention = name

    def forward(self, tokens, past_key_values=None, use_cache=None, logits_to_keep=0):
        return SimpleNamespace(logits=self.lm_head(self.inner(self.embedding(tokens))))


class ToyModel(Model):
    def made(self, device, layers=None):
        torch.manual_seed(0)
        return Toy().bfloat16().to(device).eval()


TOY = ToyModel("Toy", lambda: None)


@pytest.fixture
def timed(monkeypatch):
    """Every step is run once, and takes as many milliseconds as it has logits of tokens."""

    def run_once(step, device):
        return float(step().logits[..., 0].numel())

    def decoder(model, run, prompt, longest=0):
        lengths = iter((512, 512 + steps.WARM + steps.ROUNDS * steps.REPLAYS))
        return lambda: run(prompt[:, -1:], use_cache=True), lambda: next(lengths)

    monkeypatch.setattr(steps, "timed", run_once)
    monkeypatch.setattr(steps, "decoder", decoder)

    def compile(model, dynamic, options=None):
        is_quantized = isinstance(model.inner, WeightOnlyLinear)
        ours = {"post_grad_custom_pre_pass": tritonmm.merge_siblings(), "triton.enable_pdl": True}
        assert options == (ours if is_quantized else None)
        return model

    monkeypatch.setattr(torch, "compile", compile)


def test_divergence():
    logits = torch.randn(5, 40)
    assert compare.divergence(logits, logits + 3) == pytest.approx(0, abs=1e-6)
    p, q = torch.tensor([[0.25, 0.75]]), torch.tensor([[0.5, 0.5]])
    expected = (p * (p / q).log()).sum().item()
    assert compare.divergence(p.log(), q.log()) == pytest.approx(expected, rel=1e-5)


def test_the_cache_holds_all_tokens():
    assert steps.PROMPT + steps.WARM + steps.ROUNDS * steps.REPLAYS <= steps.LONGEST


def test_a_cache_that_does_not_grow_is_an_error():
    steps.check_cache(512, 655)
    with pytest.raises(RuntimeError, match="143 steps added 4 tokens to the cache"):
        steps.check_cache(512, 516)


def test_every_way_and_step_is_a_row(timed, device):
    ways = "torch", "torch+compile", "int8", "int4+compile", "int4+lm_head+compile"
    rows = list(compare.compare(TOY, Asked(ways, batches=(1, 4)), device))
    assert [row.message for row in rows] == [""] * len(rows)
    whats = "prefill 2048", "decode 1", "decode 4"
    assert [(row.way, row.what) for row in rows] == [(way, what) for way in ways for what in whats]
    assert len(rows) == Asked(ways, batches=(1, 4)).rows
    by_way = {row.way: row for row in rows}
    assert {row.tokens_per_s for row in rows} == {1000.0}
    assert by_way["torch"].kl is None
    assert by_way["torch+compile"].kl == pytest.approx(0, abs=1e-5)
    assert 0 < by_way["int8"].kl < by_way["int4+compile"].kl
    assert by_way["int4+lm_head+compile"].kl > by_way["int4+compile"].kl  # the output layer is quantized, too


def test_ways_with_attention_decode_with_ours(timed, monkeypatch, device):
    given = []
    monkeypatch.setattr(compare, "use_decode_attention_", given.append)
    ways = "torch", "torch+attention", "int8+attention+compile", "int4+lm_head+attention"
    assert set(ways) <= set(compare.WAYS)
    assert "torch+lm_head" not in compare.WAYS
    rows = list(compare.compare(TOY, Asked(ways, prefill=False, batches=(1,)), device))
    assert [row.message for row in rows] == [""] * len(rows)
    assert [model.attention for model in given] == ["sdpa"] * 3
    assert [type(model.inner) for model in given] == [torch.nn.Linear, WeightOnlyLinear, WeightOnlyLinear]
    assert [type(model.lm_head) for model in given] == [torch.nn.Linear, torch.nn.Linear, WeightOnlyLinear]


def test_torchs_logits_are_known_without_its_way(timed, device):
    (row,) = compare.compare(TOY, Asked(("int8",), prefill=False, batches=(1,)), device)
    assert row.kl is not None


def test_what_is_out_of_memory_is_a_row_and_others_go_on(timed, monkeypatch):
    once = steps.timed

    def short(step, device):
        if (ms := once(step, device)) == 200:
            raise torch.OutOfMemoryError("CUDA out of memory, no. 3 #4")
        return ms

    monkeypatch.setattr(steps, "timed", short)
    rows = list(compare.compare(TOY, Asked(("torch",), batches=(1, 200)), CPU))
    short_of = "out of memory: CUDA out of memory, no. 3 no. 4"
    assert [(row.what, row.message) for row in rows] == [
        ("prefill 2048", ""), ("decode 1", ""), ("decode 200", short_of),
    ]  # fmt: skip


def test_a_model_that_cannot_be_made_is_a_row(timed, device):
    class Large(ToyModel):
        def made(self, device, layers=None):
            raise torch.OutOfMemoryError("CUDA out of memory")

    rows = list(compare.compare(Large("Large", lambda: None), Asked(("torch", "int8")), device))
    assert [(row.way, row.what) for row in rows] == [("torch", "logits"), ("torch", "model"), ("int8", "model")]
    assert all(row.message.startswith("out of memory") for row in rows)


def test_torch_compile_must_not_compile_again():
    torch.compiler.reset()
    run = torch.compile(lambda x: x + 1, backend="eager", dynamic=False)
    run(torch.ones(3))
    with steps.no_compilation():
        run(torch.ones(3))
    with pytest.raises(RuntimeError, match="recompile"), steps.no_compilation():
        run(torch.ones(4))
    run(torch.ones(5))


def test_triton_must_not_compile():
    from triton import knobs

    before = knobs.runtime.jit_cache_hook
    with (
        pytest.raises(RuntimeError, match="a step compiled a_kernel, although"),
        steps.no_compilation(),
    ):
        assert not knobs.runtime.jit_cache_hook(key="", fn=SimpleNamespace(name="a_kernel"))
    assert knobs.runtime.jit_cache_hook is before


ROWS = [
    Row("M", "torch", "decode 1", 10.0, 100.0, 16.0),
    Row("M", "torch+compile", "decode 1", 8.0, 125.0, 16.0, 0.0),
    Row("M", "int8", "decode 1", 5.0, 200.0, 9.0, 0.03),
    Row("M", "int4", "model", message="out of memory: much"),
]


@pytest.mark.parametrize(
    ("ways", "ratio"), [(("torch", "torch+compile", "int8"), "1.60"), (("torch", "int8"), "2.00"), (("int8",), "")]
)
def test_ratios_are_to_the_compiled_model_if_it_was_measured(ways, ratio, capsys):
    report.show([row for row in ROWS if row.way in ways])
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "int8" in line)
    assert line.split() == ["M", "int8", "200", *([f"({ratio})"] if ratio else []), "9.0", "0.0300"]


def test_reasons_are_printed(capsys):
    report.show(ROWS)
    printed = capsys.readouterr().out
    assert "M, int4, model: out of memory: much" in printed
    assert "relative to torch+compile" in printed


TINY = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 100, "max_position_embeddings": 256, "head_dim": 16,
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore")
def test_a_compiled_model_decodes_without_compiling_again(name, device):
    """Each token is at another position of the cache, which grows. Both models decode the same."""
    pytest.importorskip("transformers")
    config = MODELS[name].config()
    for key, value in TINY.items():
        setattr(config, key, value)
    config.num_experts, config.num_experts_per_tok, config.moe_intermediate_size = 8, 2, 32
    model = Model("tiny", lambda: config).made(device)
    prompt = compare.tokens(model, 2, device, 12)
    torch.compiler.reset()
    with torch.no_grad():
        plain, length = steps.decoder(model, model, prompt, 64)
        compiled, other = steps.decoder(model, torch.compile(model, dynamic=False, backend="eager"), prompt, 64)
        for i in range(4):
            expected = plain().logits
            with steps.no_compilation() if i else torch.no_grad():
                found = compiled().logits
            assert torch.equal(found, expected), i
            assert length() == other() == 13 + i
