"""Mixtures of distributions beside the same layer in plain operators of PyTorch."""

import math

import pytest

import mgpu_ngram as ng

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
ng_torch = pytest.importorskip("mgpu_ngram.torch")

COUNTS, WORDS = 1, 2


def plain_loss(logits, log_probs, target, words, dropped=None):
    """Return -ln P by the definition: a softmax over kept columns, then the sum of weights times probabilities."""
    R, N = log_probs.shape
    logits = logits[:, : words + N].double()
    if dropped is not None:
        lost = torch.cat(
            [(dropped == WORDS)[:, None].expand(R, words), (dropped == COUNTS)[:, None].expand(R, N)], dim=1
        )
        logits = logits.masked_fill(lost, -float("inf"))
    weights = logits.softmax(1)
    return -(weights[:, words:] * log_probs.double().exp()).sum(1).add(weights[torch.arange(R), target]).log()


def rows(seed, R=6, words=37, N=3, dtype=torch.float32, padding=2):
    made = torch.Generator().manual_seed(seed)
    logits = (3 * torch.randn(R, words + N + padding, generator=made)).to(dtype)
    log_probs = torch.rand(R, N, generator=made).log()
    target = torch.randint(words, (R,), generator=made)
    return logits, log_probs, target, words, torch.tensor([0, COUNTS, WORDS, 0, WORDS, COUNTS], dtype=torch.uint8)[:R]


def to(device, arguments):
    place = "cuda" if device == "gpu" else "cpu"
    return [a.to(place) if isinstance(a, torch.Tensor) else a for a in arguments]


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, 5e-6), (torch.float16, 2e-3), (torch.bfloat16, 1e-2), (torch.float64, 1e-12)],
    ids=["float32", "float16", "bfloat16", "float64"],
)
def test_losses_and_gradients_are_those_of_plain_operators(device, dtype, tolerance):
    logits, log_probs, target, words, dropped = to(device, rows(1, dtype=dtype))
    found_by, expected_by = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    found = ng_torch.mixture_loss(found_by, log_probs, target, words, dropped)
    expected = plain_loss(expected_by, log_probs, target, words, dropped)
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert torch.allclose(found.double(), expected, rtol=0, atol=min(tolerance, 5e-6))
    scale = torch.linspace(-1, 2, len(logits)).to(logits.device)
    (found * scale).sum().backward()
    (expected * scale).sum().backward()
    assert found_by.grad.dtype == dtype
    assert torch.allclose(found_by.grad.double(), expected_by.grad.double(), rtol=0, atol=tolerance)


@pytest.mark.parametrize("dropped", [False, True])
def test_gradients_in_float64(dropped):
    logits, log_probs, target, words, blocks = rows(2, words=5, dtype=torch.float64)
    inputs = logits.requires_grad_(), log_probs.double().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda z, p: ng_torch.mixture_loss(z, p, target, words, blocks if dropped else None), inputs
    )


@pytest.mark.parametrize("dropped", [False, True])
def test_transforms_of_functions_are_those_of_plain_operators(device, dropped):
    logits, log_probs, target, words, blocks = to(device, rows(12))
    scale, blocks = torch.linspace(-1, 2, 6).to(logits.device), blocks if dropped else None
    many = torch.stack([logits, logits.flip(0), 2 * logits])

    def of(loss):
        def scaled(logits, log_probs):
            return (loss(logits, log_probs, target, words, blocks) * scale).sum()

        pulled = torch.func.vjp(lambda *inputs: loss(*inputs, target, words, blocks), logits, log_probs)[1]
        yield from torch.func.grad(scaled, (0, 1))(logits, log_probs)
        yield from pulled(scale.to(torch.float64 if loss is plain_loss else torch.float32))
        yield torch.func.vmap(scaled, (1, None))(many.movedim(0, 1), log_probs)
        yield from torch.func.vmap(torch.func.grad(scaled, (0, 1)), (0, None))(many, log_probs)
        yield torch.func.jacrev(loss)(logits, log_probs, target, words, blocks)

    for found, expected in zip(of(ng_torch.mixture_loss), of(plain_loss), strict=True):
        assert found.dtype == torch.float32 and found.shape == expected.shape
        assert torch.allclose(found.double(), expected.double(), rtol=1e-5, atol=5e-6)


def test_each_example_has_a_gradient_of_the_layer_under_autocast():
    module, hidden, log_probs = layer(), torch.randn(5, 1, 8), torch.rand(5, 1, 2).log()
    of_weights, target = dict(module.named_parameters()), torch.arange(5)[:, None]

    def loss(weights, *example):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return torch.func.functional_call(module, weights, example).sum()

    found = torch.func.vmap(torch.func.grad(loss), (None, 0, 0, 0))(of_weights, hidden, log_probs, target)
    for i in range(5):
        module.zero_grad()
        loss(of_weights, hidden[i], log_probs[i], target[i]).backward()
        for name, weights in of_weights.items():
            assert torch.allclose(found[name][i], weights.grad, rtol=2e-2, atol=2e-3) and weights.grad.any()


@pytest.mark.parametrize("of", [0, 1], ids=["logits", "log_probs"])
def test_second_derivatives_are_refused(of):
    logits, log_probs, target, words, _ = rows(13)
    with pytest.raises(ng.InputError, match="mixture_loss has first derivatives only"):
        torch.func.jacrev(torch.func.jacrev(ng_torch.mixture_loss, of), of)(logits, log_probs, target, words)


def test_gradients_of_probabilities_in_float32():
    logits, log_probs, target, words, dropped = rows(3)
    found, expected = log_probs.clone().requires_grad_(), log_probs.clone().requires_grad_()
    ng_torch.mixture_loss(logits, found, target, words, dropped).sum().backward()
    plain_loss(logits, expected, target, words, dropped).sum().backward()
    assert torch.allclose(found.grad, expected.grad, atol=2e-6, rtol=0)


def test_without_counts_it_is_a_softmax(device):
    logits, _, target, words, _ = to(device, rows(4, N=0, padding=0))
    found, expected = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    losses = ng_torch.mixture_loss(found, logits[:, :0], target, words)
    wanted = torch.nn.functional.cross_entropy(expected, target, reduction="none")
    assert torch.allclose(losses, wanted, atol=5e-6, rtol=0)
    losses.sum().backward()
    wanted.sum().backward()
    assert torch.allclose(found.grad, expected.grad, atol=2e-6, rtol=0)


def test_without_words_it_is_an_interpolation():
    logits, log_probs, target, words, _ = rows(5)
    losses = ng_torch.mixture_loss(logits, log_probs, target, words, torch.full((6,), WORDS, dtype=torch.uint8))
    weights = logits[:, words : words + 3].softmax(1)
    assert torch.allclose((-losses).exp(), (weights * log_probs.exp()).sum(1), atol=2e-6, rtol=0)


def layer(**options):
    torch.manual_seed(6)
    return ng_torch.MixtureOfDistributions(8, 11, 2, **options)


def test_rows_of_the_layer_sum_to_1_and_have_its_losses(device):
    module = layer(block_dropout={"counts": 1.0}).eval()  # nothing is dropped but in training
    hidden, counts = torch.randn(3, 5, 8), torch.rand(3, 5, 2, 11).softmax(-1)
    target = torch.randint(11, (3, 5))
    (module,) = (module.cuda() if device == "gpu" else module,)
    hidden, counts, target = to(device, (hidden, counts, target))
    found = module.probabilities(hidden, counts)
    assert found.shape == (3, 5, 11) and torch.allclose(found.sum(-1), torch.ones_like(found[..., 0]), atol=1e-5)
    of_target = counts.gather(-1, target[..., None, None].expand(3, 5, 2, 1))[..., 0].log()
    losses = module(hidden, of_target, target)
    assert losses.shape == (3, 5)
    assert torch.allclose((-losses).exp(), found.gather(-1, target[..., None])[..., 0], atol=2e-6, rtol=0)


@pytest.fixture(scope="module")
def count_models():
    """Return a function: two models of tokens, a trigram and a unigram one, on a device."""
    text = ng.Lines(["a b c a b d", "b c a a", "d d a b c", "c a b"])
    tokens = ["a", "b", "c", "d", "e", "</s>"]

    def count_models(device):
        models = (ng.estimate(text, order, device=device, discount_fallback=(0.5, 1, 1.5)) for order in (3, 1))
        return [ng_torch.NGramLM(model, tokens) for model in models]

    return count_models


def test_best_words_are_those_of_whole_rows(device, count_models):
    models, place = count_models(device), "cuda" if device == "gpu" else "cpu"
    torch.manual_seed(8)
    module = ng_torch.MixtureOfDistributions(4, 6, 2).to(place)
    states = torch.stack([model.get_init_states(5) for model in models], -1)
    for i, model in enumerate(models):  # the histories <s>, a b, d d, b and e
        states[1:, i] = model.step(states[1:, i], torch.tensor([0, 3, 1, 4], device=place))
        states[1:3, i] = model.step(states[1:3, i], torch.tensor([1, 3], device=place))
    hidden = 3 * torch.randn(5, 4, device=place)
    counts = torch.stack([model.advance(states[:, i])[0].exp() for i, model in enumerate(models)], 1)
    rows = module.probabilities(hidden, counts)
    expected, order = rows.sort(dim=1, descending=True, stable=True)
    for k in (1, 4, 6):
        probs, words = module.top_k(hidden, models, states, k)
        assert torch.allclose(probs, expected[:, :k], rtol=1e-5, atol=0) and torch.equal(words, order[:, :k])
    compiled = torch.compile(
        lambda *inputs: module.top_k(2 * inputs[0], models, inputs[1], 4), fullgraph=True, backend="aot_eager"
    )
    for found, wanted in zip(compiled(hidden / 2, states), module.top_k(hidden, models, states, 4), strict=True):
        assert torch.equal(found, wanted)
    strange, empty = states.clone(), states.clone()  # numbers beyond int32 are not states: as without words
    strange[1:, 0] += torch.tensor([1, -1, 5, -5], device=place) << 32
    empty[1:, 0] = -1
    for found, wanted in zip(*(module.top_k(hidden, models, given, 4) for given in (strange, empty)), strict=True):
        assert torch.equal(found, wanted)
    probs, words = module.top_k(hidden.view(1, 5, 4), models, states.view(1, 5, 2), 2)
    assert probs.shape == words.shape == (1, 5, 2) and words.dtype == torch.int64


def test_the_operator_of_best_words_keeps_the_rules_of_pytorch(device, count_models):
    from torch import library

    models = count_models(device)
    states = torch.stack([model.get_init_states(5) for model in models], -1).to(torch.int32)
    logits, numbers = torch.randn(5, 8, device=states.device), [model._number for model in models]
    library.opcheck(torch.ops.mgpu_ngram.mixture_top.default, (logits, 6, 3, numbers, states))


def test_best_words_that_are_refused(count_models):
    module, models = ng_torch.MixtureOfDistributions(4, 6, 2), count_models("cpu")
    hidden, states = torch.zeros(3, 4), torch.zeros(3, 2, dtype=torch.int64)
    with pytest.raises(ng.InputError, match=r"models of \[6\] words and states \(3, 2\) do not fit 2"):
        module.top_k(hidden, models[:1], states, 2)
    with pytest.raises(ng.InputError, match="k is 7 but must be 1 to 6"):
        module.top_k(hidden, models, states, 7)
    with pytest.raises(ng.InputError, match="k is 2.0 but must be an integer, 1 or more"):
        module.top_k(hidden, models, states, 2.0)
    with pytest.raises(ng.InputError, match=r"states are torch.float32 of shape \(3, 2\) but must be a tensor of int"):
        module.top_k(hidden, models, states.float(), 2)
    with pytest.raises(ng.InputError, match="model 0 is Model but must be an NGramLM"):
        module.top_k(hidden, [model.model for model in models], states, 2)
    with pytest.raises(ng.InputError, match="model 0 is on cpu and the states on meta but hidden states are on cpu"):
        module.top_k(hidden, models, states.to("meta"), 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_rows_are_the_same_with_and_without_gradients(device, dtype):
    module = layer().to("cuda" if device == "gpu" else "cpu")
    hidden, counts = to(device, (torch.randn(2, 3, 8), torch.rand(2, 3, 2, 11).softmax(-1).to(dtype)))
    expected = module.probabilities(hidden, counts)
    with torch.no_grad():
        found = module.probabilities(hidden, counts)
    assert expected.requires_grad and not found.requires_grad and found.dtype == torch.float32
    assert torch.allclose(found, expected, atol=1e-6, rtol=0)
    with pytest.raises(ng.InputError, match=r"rows have shape \(2, 3, 2, 10\) but the layer needs \(2, 3, 2, 11\)"):
        module.probabilities(hidden, counts[..., :10])


def test_rows_of_count_distributions_have_gradients():
    """Of a layer that is not trained, the gradient of P(w) by P_i(w) is the weight of distribution i."""
    module, hidden = layer().requires_grad_(False), torch.randn(4, 8)
    counts = torch.rand(4, 2, 11).softmax(-1).requires_grad_()
    module.probabilities(hidden, counts)[:, 3].sum().backward()
    weights = module.logits(hidden)[:, :13].softmax(1)[:, 11:]
    assert torch.allclose(counts.grad[..., 3], weights, atol=1e-6) and not counts.grad[..., :3].any()


def test_a_block_is_dropped_for_its_share_of_rows():
    """Rows without counts have the loss of a softmax, and rows without words that of an interpolation."""
    module = layer(block_dropout={"counts": 0.5, "words": 0.25})
    hidden, target = torch.randn(1, 8).expand(4000, 8), torch.zeros(4000, dtype=torch.int64)
    log_probs = torch.full((4000, 2), -3.0)
    losses = module(hidden, log_probs, target)
    logits = module.logits(hidden[0])
    wanted = -logits[:11].log_softmax(0)[0], torch.tensor(3.0)
    shares = [torch.isclose(losses, value, atol=1e-5).double().mean() for value in wanted]
    assert abs(shares[0] - 0.5) < 0.04 and abs(shares[1] - 0.25) < 0.04  # 5 standard deviations


def test_training_finds_the_better_distribution():
    """Targets follow the second count distribution; the weights learn to trust it."""
    module, made = layer(), torch.Generator().manual_seed(1)
    optimizer = torch.optim.Adam(module.parameters(), 0.1)
    hidden, target = torch.ones(64, 8), torch.randint(11, (64,), generator=made)
    log_probs = torch.tensor([0.01, 0.9]).log().expand(64, 2)
    for _ in range(50):
        optimizer.zero_grad()
        module(hidden, log_probs, target).mean().backward()
        optimizer.step()
    assert module.logits(hidden[0])[:13].softmax(0)[12] > 0.9


@pytest.mark.parametrize("dropped", [False, True])
def test_it_compiles_without_a_break(device, dropped):
    logits, log_probs, target, words, blocks = to(device, rows(8))
    inputs = logits.requires_grad_(), log_probs.requires_grad_()

    def loss(logits, log_probs):
        losses = ng_torch.mixture_loss(2 * logits, log_probs, target, words, blocks if dropped else None)
        return (3 * losses).sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    wanted, found = (torch.autograd.grad(fn(*inputs), inputs) for fn in (loss, compiled))
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=["bfloat16", "float64"])
def test_the_operator_keeps_the_rules_of_pytorch(device, dtype):
    from torch import library

    logits, log_probs, *others = to(device, rows(9, dtype=dtype))
    log_probs = log_probs.double() if dtype == torch.float64 else log_probs
    library.opcheck(torch.ops.mgpu_ngram.mixture_loss.default, (logits.requires_grad_(), log_probs, *others))


def test_under_autocast_it_is_the_loss_of_cross_entropy(device):
    """Losses of logits of 16 bits are float32, and so are their sums."""
    place = "cuda" if device == "gpu" else "cpu"
    module = ng_torch.MixtureOfDistributions(64, 5000, 0).to(place)
    hidden, target = torch.randn(7, 64).to(place), torch.arange(7).to(place)
    with torch.autocast(place, dtype=torch.bfloat16):
        losses = module(hidden, hidden[:, :0], target)
        logits = module.logits(hidden)
    wanted = torch.nn.functional.cross_entropy(logits[:, :5000].double(), target, reduction="none")
    assert logits.dtype == torch.bfloat16 and losses.dtype == torch.float32
    assert torch.allclose(losses.double(), wanted, atol=5e-6, rtol=0)
    losses.sum().backward()
    assert module.logits.weight.grad.dtype == torch.float32


@pytest.mark.parametrize("gradient", [True, False])
def test_under_autocast_rows_are_single_precision(device, gradient):
    place = "cuda" if device == "gpu" else "cpu"
    module, counts = ng_torch.MixtureOfDistributions(64, 50, 3).to(place), torch.rand(7, 3, 50).softmax(-1).to(place)
    hidden = torch.randn(7, 64).to(place)
    with torch.autocast(place, dtype=torch.bfloat16), torch.set_grad_enabled(gradient):
        found, logits = module.probabilities(hidden, counts), module.logits(hidden)
    weights = logits[:, :53].double().softmax(1)
    wanted = weights[:, :50] + (weights[:, None, 50:] @ counts.double())[:, 0]
    assert found.dtype == torch.float32 and torch.allclose(found.double(), wanted, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block_dropout": {"ngrams": 0.5}}, r"block_dropout names \['ngrams'\] but blocks are \['counts', 'words'\]"),
        ({"block_dropout": {"counts": 0.5, "words": 0.6}}, "together at most 1"),
        ({"block_dropout": {"counts": math.nan}}, "block_dropout of counts is nan but must be a finite number"),
        ({"block_dropout": 0.5}, "block_dropout is 0.5 but must be a share by block, as {'counts': 0.5}"),
    ],
)
def test_blocks_that_are_refused(options, message):
    with pytest.raises(ng.InputError, match=message):
        layer(**options)


def test_layers_that_are_refused():
    with pytest.raises(ng.InputError, match="num_counts is 0, so that nothing is left"):
        ng_torch.MixtureOfDistributions(8, 11, 0, {"words": 0.1})
    with pytest.raises(ng.InputError, match="num_words is 0 but must be an integer, 1 or more"):
        ng_torch.MixtureOfDistributions(8, 0, 2)


def test_rows_of_the_layer_that_are_refused():
    """Log-probabilities of shape (N, B) have as many numbers as those of (B, N)."""
    module, hidden, target = layer(), torch.zeros(4, 8), torch.zeros(4, dtype=torch.int64)
    with pytest.raises(ng.InputError, match=r"log_probs \(2, 4\) but hidden states \(4, 8\) need \(4,\) and \(4, 2\)"):
        module(hidden, torch.zeros(2, 4), target)
    with pytest.raises(ng.InputError, match=r"targets have shape \(3,\) and"):
        module(hidden, torch.zeros(4, 2), target[:3])
    with pytest.raises(ng.InputError, match=r"hidden states are torch.float32 of shape \(4, 7\) but .* \(\.\.\., 8\)"):
        module.probabilities(hidden[:, :7], torch.zeros(4, 2, 11))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda layer, x, t: layer(x.long(), x[:, :2], t),
            r"hidden states are torch.int64 of .* floating-point numbers",
        ),
        (lambda layer, x, t: layer([1.0], x[:, :2], t), r"hidden states are list but must be a tensor"),
        (lambda layer, x, t: layer(x, None, t), "log_probs is NoneType but must be a tensor"),
        (lambda layer, x, t: layer(x, x[:, :2], [0] * 4), "target is list but must be a tensor"),
        (lambda layer, x, t: layer.probabilities(x, None), "rows is NoneType but must be a tensor"),
        (lambda layer, x, t: layer.top_k(x, None, t, 2), "models are None but must be a list of NGramLMs"),
    ],
)
def test_arguments_of_the_layer_that_are_no_tensors(call, message):
    with pytest.raises(ng.InputError, match=message):
        call(layer(), torch.zeros(4, 8), torch.zeros(4, dtype=torch.int64))


def test_without_counts_rows_are_those_of_a_softmax():
    module, hidden = ng_torch.MixtureOfDistributions(8, 11, 0), torch.randn(3, 8)
    with torch.no_grad():
        found = module.probabilities(hidden, torch.zeros(3, 0, 11))
        assert torch.allclose(found, module.logits(hidden)[:, :11].softmax(1), atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_words_beyond_the_vocabulary_have_no_loss(dtype):
    """Nor do they read the weights of count distributions, which follow the words."""
    logits = torch.zeros(3, 8, dtype=dtype, requires_grad=True)
    losses = ng_torch.mixture_loss(logits, torch.zeros(3, 2), torch.tensor([5, 6, -1]), 6)
    losses.sum().backward()
    assert losses.isnan().tolist() == [False, True, True]
    assert logits.grad.isnan()[:, :6].all(1).tolist() == [False, True, True]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64], ids=str)
def test_targets_of_probability_0(dtype, device):
    """The loss is inf. No distribution has a posterior, so the gradient is the weights; that of log_probs is 0."""
    tensors = [torch.zeros(2, 5, dtype=dtype), torch.full((2, 2), -float("inf"))]
    *inputs, target, dropped = to(device, [*tensors, torch.tensor([0, 2]), torch.tensor([WORDS, 0], dtype=torch.uint8)])
    for tensor in inputs:
        tensor.requires_grad_()
    losses = ng_torch.mixture_loss(*inputs, target, 3, dropped)
    losses.sum().backward()
    assert losses[0].isinf() and losses[1].item() == pytest.approx(math.log(5))
    weights = [[0, 0, 0, 0.5, 0.5], [0.2, 0.2, -0.8, 0.2, 0.2]]
    assert torch.allclose(inputs[0].grad.cpu().double(), torch.tensor(weights).double(), atol=1e-3)
    assert not inputs[1].grad.any()


@pytest.mark.parametrize(
    ("at", "change", "message"),
    [
        (0, lambda t: t.int(), "logits are torch.int32"),
        (0, lambda t: t.numpy(), "logits is ndarray but must be a tensor"),
        (1, lambda t: t > 0, "log_probs are torch.bool but must be of"),
        (1, lambda t: t[:5], r"log_probs is torch.float32 of shape \(5, 3\) but needs torch.float32 of \(6, 3\)"),
        (2, lambda t: t.int(), r"target is torch.int32 of shape \(6,\) but needs torch.int64 of \(6,\)"),
        (2, lambda t: None, "target is NoneType but must be a tensor"),
        (3, lambda words: 2.5, "num_words is 2.5 but must be an integer, 1 or more"),
        (3, lambda words: 0, "num_words is 0 but must be an integer, 1 or more"),
        (3, lambda words: 40, r"logits \(6, 42\) and log_probs \(6, 3\) do not fit 40 words"),
        (4, lambda t: t.to("meta"), "dropped is on meta but the logits are on cpu; move it there"),
    ],
)
def test_tensors_that_are_refused(at, change, message):
    arguments = list(rows(7))
    arguments[at] = change(arguments[at])
    with pytest.raises(ng.InputError, match=message):
        ng_torch.mixture_loss(*arguments)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_masked_words_are_left_out_and_masked_rows_have_no_loss(dtype, device):
    """Masks are often the least finite number in place of -inf. A row that has no other is not a guess."""
    least, place = torch.finfo(dtype).min, "cuda" if device == "gpu" else "cpu"
    logits = torch.randn(4, 13, device=place).to(dtype)
    logits[0, 2:9], logits[1, 2:9], logits[2], logits[3] = least, -math.inf, least, -math.inf
    logits[3, 1] = least
    nothing, target = torch.full((4, 2), -math.inf, device=place), torch.ones(4, dtype=torch.int64, device=place)
    losses = ng_torch.mixture_loss(logits.requires_grad_(), nothing, target, 11)
    wanted = torch.nn.functional.cross_entropy(logits.float(), target, reduction="none")
    assert torch.allclose(losses[:2], wanted[:2], atol=1e-4) and losses[2:].isnan().all()
    (gradient,) = torch.autograd.grad(losses[:2].sum(), logits)
    assert gradient[:2, :9].isfinite().all() and not gradient[:2, 2:9].any()


def test_a_layer_of_counts_alone_interpolates(device):
    """Also at inference: the words have no weights."""
    torch.manual_seed(8)
    place = "cuda" if device == "gpu" else "cpu"
    module = ng_torch.MixtureOfDistributions(8, 11, 3, only_counts=True).to(place)
    hidden, rows = torch.randn(2, 5, 8, device=place), torch.rand(2, 5, 3, 11, device=place).softmax(-1)
    target = torch.randint(11, (2, 5), device=place)
    log_probs = rows.gather(-1, target[..., None, None].expand(2, 5, 3, 1))[..., 0].log()
    weights = module.logits(hidden)[..., 1:4].softmax(-1)
    wanted = -(weights * log_probs.exp()).sum(-1).log()
    for losses in module(hidden, log_probs, target), module.eval()(hidden, log_probs, target):
        assert torch.allclose(losses, wanted, atol=1e-5)
    found = module.probabilities(hidden, rows)
    assert torch.allclose(found, (weights[..., None] * rows).sum(-2), atol=1e-6)
    assert torch.allclose(found.sum(-1), torch.ones(2, 5, device=place), atol=1e-5)
    of_loss, plain = (torch.autograd.grad(made.sum(), module.logits.weight) for made in (losses, wanted))
    assert torch.allclose(of_loss[0], plain[0], atol=1e-5)
    assert module(hidden[0], log_probs[0], torch.full_like(target[0], 11)).isnan().all()
    with pytest.raises(ng.InputError, match=r"top_k needs the words but only_counts is True; use probabilities"):
        module.top_k(hidden, [], target, 1)
    for wrong in {"num_counts": 0}, {"num_counts": 2, "block_dropout": {"words": 0.5}}:
        with pytest.raises(ng.InputError, match="only_counts is True but block_dropout is"):
            ng_torch.MixtureOfDistributions(8, 11, only_counts=True, **wrong)
