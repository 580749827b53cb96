import pytest
import torch
from fairseq.modules import MultiheadAttention

from fairseq_entmax.attention import MAPPINGS, attention_alphas, build_mapping
from fairseq_entmax.ops import entmax
from fairseq_entmax.transformer_attention import SparseMultiheadAttention

TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
HALF = pytest.mark.skipif(TORCH < (2, 3), reason="torch computes no products of float16 on CPU")
DTYPES = [pytest.param(torch.float16, marks=HALF), torch.bfloat16, torch.float32]
KINDS = {
    "self": {"self_attention": True},
    "source": {"encoder_decoder_attention": True, "kdim": 6, "vdim": 6},
    "both": {},
}


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def pair(kind="self", mapping="softmax", **options):
    """Ours and fairseq's, with the same parameters."""
    torch.manual_seed(0)
    stock = MultiheadAttention(8, 2, **KINDS[kind]).double().eval()
    ours = SparseMultiheadAttention(build_mapping(mapping, **options), 8, 2, **KINDS[kind]).double().eval()
    ours.load_state_dict(stock.state_dict(), strict=False)
    return ours, stock


def inputs(kind, tgt_len=4, src_len=5, batch=3):
    query = randn(tgt_len, batch, 8)
    if kind == "self":
        return query, query, query
    key = randn(src_len, batch, 6 if kind == "source" else 8, seed=1)
    return query, key, key if kind == "source" else randn(src_len, batch, 8, seed=2)


def padding(side, src_len, batch=3):
    if side == "none":
        return None
    pads = torch.zeros(batch, src_len, dtype=torch.bool)
    pads[1, : 2 if side == "left" else None] = side == "left"
    if side == "right":
        pads[1] = torch.arange(src_len) >= src_len - 2
    return pads


@pytest.mark.parametrize("side", ["none", "left", "right"])
@pytest.mark.parametrize("kind", KINDS)
def test_with_softmax_it_is_fairseqs(kind, side):
    ours, stock = pair(kind)
    query, key, value = inputs(kind)
    for heads in (False, True):
        options = {"key_padding_mask": padding(side, len(key)), "need_head_weights": heads, "static_kv": True}
        results = []
        for module in (ours, stock):
            module.zero_grad()
            output, weights = module(query, key, value, **options)
            (output * randn(*output.shape, seed=3)).sum().backward()
            results.append([output, weights, *(p.grad for p in module.parameters())])
        assert results[0][1].shape == ((2, 3, 4, len(key)) if heads else (3, 4, len(key)))
        for mine, theirs in zip(*results):
            assert torch.allclose(mine, theirs.double(), atol=1e-5)  # fairseq's softmax is one of float32
    assert ours(query, key, value, need_weights=False)[1] is None


@pytest.mark.parametrize("name", MAPPINGS)
def test_steps_with_a_cache_equal_a_causal_mask(name):
    ours, stock = pair(mapping=name)
    query = 3 * randn(6, 3, 8)
    causal = torch.full((6, 6), float("-inf"), dtype=torch.float64).triu(1)
    full, weights = ours(query, query, query, attn_mask=causal)
    assert (weights * causal.ne(0)).abs().max() == 0
    state, order = {}, torch.tensor([2, 0, 0, 1])
    for t in range(3):
        step = ours(query[t : t + 1], None, None, incremental_state=state)[0]
        assert torch.allclose(step[0], full[t], atol=1e-10)
    ours.reorder_incremental_state(state, order)
    for t in range(3, 6):
        step = ours(query[t : t + 1, order], None, None, incremental_state=state)[0]
        assert torch.allclose(step[0], full[t, order], atol=1e-10)
    if name == "softmax":
        assert torch.allclose(full, stock(query, query, query, attn_mask=causal)[0], atol=1e-12)


def test_source_is_read_once_and_its_padding_remembered():
    ours, _ = pair("source", "sparsemax")
    query, key, value = inputs("source")
    pads = padding("left", 5)
    full, weights = ours(query, key, value, key_padding_mask=pads)
    state = {}
    for t in range(4):
        source = key if t == 0 else torch.full_like(key, float("nan"))
        step, step_weights = ours(
            query[t : t + 1], source, source, key_padding_mask=pads, incremental_state=state, static_kv=True
        )
        assert torch.allclose(step[0], full[t]) and torch.allclose(step_weights[:, 0], weights[:, t])
    assert (weights[1, :, :2] == 0).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["entmax15", "sparsemax", "fusedmax", "oscarmax", "pnormmax"])
def test_all_ways_to_forbid_a_position_are_one_case_38(name, dtype):
    ours, _ = pair(mapping=name)
    ours = ours.to(dtype)
    query = (3 * randn(5, 2, 8)).to(dtype)
    forbidden = torch.ones(5, 5, dtype=torch.bool).triu(1)
    forbidden[0] = True  # nothing is left for the first query
    results = []
    for value in (float("-inf"), -1e4, -1e8 if dtype != torch.float16 else float("-inf"), None):
        mask = forbidden if value is None else torch.zeros(5, 5).masked_fill(forbidden, value).to(dtype)
        results.append(ours(query, query, query, attn_mask=mask))
    for output, weights in results:
        assert torch.equal(output, results[0][0]) and torch.equal(weights, results[0][1])
        assert (weights[:, forbidden] == 0).all() and output.isfinite().all()
        assert torch.allclose(weights[:, 1:].float().sum(-1), torch.ones(2, 4), atol=1e-2)


@pytest.mark.parametrize("name", MAPPINGS[1:])
def test_query_that_may_attend_nothing_gives_no_nan_case_11(name):
    ours, _ = pair(mapping=name)
    query = randn(4, 3, 8).requires_grad_()
    causal = torch.full((4, 4), float("-inf"), dtype=torch.float64).triu(1)
    output, weights = ours(query, query, query, key_padding_mask=padding("left", 4), attn_mask=causal)
    assert (weights[1, :2] == 0).all() and torch.equal(output[0, 1], ours.out_proj.bias)
    output.sum().backward()
    assert query.grad.isfinite().all() and all(p.grad.isfinite().all() for p in ours.parameters())


def test_each_head_has_its_alpha_case_49():
    ours, _ = pair(mapping="entmax", learn_alpha=True, heads=2)
    with torch.no_grad():
        ours.mapping.alpha.raw.copy_(torch.tensor([-2.0, 2.0])[:, None, None])
    low, high = attention_alphas(ours)[""].tolist()
    query = 4 * randn(6, 3, 8)
    _, weights = ours(query, query, query, need_head_weights=True)
    scores, _ = ours(query, query, query, before_softmax=True)
    scores = scores.view(3, 2, 6, 6)
    for head, alpha in enumerate((low, high)):
        assert torch.allclose(weights[head], entmax(scores[:, head], alpha), atol=1e-6)
    assert (weights[0] > 0).sum() > (weights[1] > 0).sum()

    def output(raw):
        values = ours.mapping.alpha.low + (ours.mapping.alpha.high - ours.mapping.alpha.low) * torch.sigmoid(raw)
        return entmax(scores.detach(), values)

    raw = ours.mapping.alpha.raw.detach().double().requires_grad_()
    assert torch.autograd.gradcheck(output, (raw,))


def test_a_softmax_state_starts_what_learns_alpha():
    _, stock = pair()
    learner = SparseMultiheadAttention(
        build_mapping("entmax", 1.3, learn_alpha=True, heads=2), 8, 2, self_attention=True
    )
    state = {f"layer.{name}": value for name, value in stock.state_dict().items()}
    learner.upgrade_state_dict_named(state, "layer")
    learner.load_state_dict({name[len("layer.") :]: value for name, value in state.items()})
    assert torch.allclose(learner.mapping.alpha(), torch.full((2, 1, 1), 1.3))
    own = {f"layer.{name}": value + 1 for name, value in learner.state_dict().items()}
    kept = dict(own)
    learner.upgrade_state_dict_named(own, "layer")
    assert own.keys() == kept.keys() and all(own[name] is kept[name] for name in own)


@pytest.mark.parametrize("option", ["add_bias_kv", "add_zero_attn"])
def test_additional_keys_are_refused(option):
    with pytest.raises(ValueError, match=option):
        SparseMultiheadAttention(build_mapping("entmax15"), 8, 2, self_attention=True, **{option: True})


def test_export_is_refused():
    with pytest.raises(ValueError, match="ONNX"):
        pair(mapping="entmax15")[0].prepare_for_onnx_export_()
