"""Networks of items and heads, which draw from the distributions that they evaluate, and never what is masked."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torchrl.data import Bounded, Categorical, MultiCategorical, Unbounded
from torchrl.modules import TanhNormal

import vecenv
from tests.reach_zero import REACH_ZERO
from vecenv.core.env import VecEnv
from vecenv.core.random import EpisodeKey, episode_key, open_uniforms, random_action
from vecenv.learn.heads import (
    CANDIDATES,
    CASH,
    FORBIDDEN,
    Bounds,
    CategoricalHead,
    DirichletHead,
    GaussianHead,
    TanhNormalHead,
    gamma_candidates,
    shortest_pattern,
)
from vecenv.learn.networks import ItemNetwork, tanh
from vecenv.learn.policies import ActorPolicy, make_network
from vecenv.learn.ppo import PPO, PPOConfig
from vecenv.learn.report import GRID, dependence_figure, partial_dependence
from vecenv.learn.settings.run import NetworkConfig

FEATURES = ("daily_change", "macd", "close_30_sma")
CPU, ROWS = torch.device("cpu"), 20_000
LOW, HIGH = torch.tensor([-1.0, 0.0, -2.0]), torch.tensor([1.0, 1.0, 4.0])
SPEC = Bounded(LOW, HIGH, (3,))
OUTPUTS = torch.tensor([0.3, -0.6, 0.1, 0.2, -1.0, 0.4])


def keys_of(rows: int) -> tuple[EpisodeKey, Tensor]:
    return episode_key(7, torch.arange(rows), 0), torch.arange(rows) % 5


def normals(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


def test_no_noise_comes_again_in_a_later_step_or_in_random_actions() -> None:
    """Ten numbers a step are three blocks of words; blocks that overlap the next step's repeat there, shifted."""
    key, elapsed = episode_key(7, torch.zeros(8, dtype=torch.int64), 0), torch.arange(8)
    drawn = torch.cat(open_uniforms(key, elapsed, 10), dim=-1)
    assert len(drawn.unique()) == drawn.numel() == 8 * 12
    acted = random_action(Bounded(0.0, 1.0, (12,)), key, elapsed)
    assert (acted.view(-1, 1) - drawn.view(-1)).abs().min() > 1e-6


def test_gaussian_samples_have_their_distribution() -> None:
    head = GaussianHead(Bounded(0.0, 1.0, (6,)), initial_std=0.5)
    bias, own = head.initial_parameters(CPU)
    assert torch.equal(bias, torch.full((6,), 0.5))
    outputs = torch.arange(6.0).expand(40_000, 6)
    action = head.sample(outputs, own, *keys_of(40_000))
    noise = (action - outputs) / 0.25
    assert noise.mean(0).abs().max() < 0.03
    torch.testing.assert_close(torch.cov(noise.T), torch.eye(6), rtol=0, atol=0.04)
    reference = torch.distributions.Normal(outputs, 0.25)
    log_prob, entropy = head.evaluate(outputs, own, action)
    torch.testing.assert_close(log_prob, reference.log_prob(action).sum(-1), rtol=0, atol=1e-4)
    torch.testing.assert_close(entropy, reference.entropy().sum(-1), rtol=0, atol=1e-4)
    assert torch.equal(head.mode(outputs), outputs)


def test_divergences_of_normal_distributions() -> None:
    """That of PyTorch, and from the centre of the bounds half the squared distance in deviations."""
    for shared in (False, True):
        head = GaussianHead(Bounded(torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 4.0]), (2,)), 0.5, shared_std=shared)
        one, other = normals(2, 30, 2)
        spread, wider = ([0.3 * part] for part in normals(2, 1 if shared else 2))
        kinds = [torch.distributions.Normal(mean, own[0].exp()) for mean, own in ((one, spread), (other, wider))]
        expected = torch.distributions.kl_divergence(*kinds).sum(-1)
        torch.testing.assert_close(head.divergence(one, spread, other, wider), expected, rtol=1e-5, atol=1e-5)
        bias, own = head.initial_parameters(CPU)
        assert bias.tolist() == [0.0, 2.0] and own[0].exp().tolist() == ([0.5] if shared else [0.5, 1.0])
        told = head.divergence_from_centre(torch.tensor([[1.0, 4.0], [0.0, 2.0]]), own)
        assert told.tolist() == pytest.approx([0.5 * (2.0**2 + (4.0 if shared else 2.0) ** 2), 0.0])


def masked_outputs(head: CategoricalHead, rows: int) -> tuple[Tensor, Tensor]:
    """Return logits and which are allowed, at least one per component. Shape of each: (rows, size)."""
    generator = torch.Generator().manual_seed(0)
    allowed = torch.rand(rows, head.size, generator=generator) < 0.4
    for part in allowed.split(head.choices, dim=-1):
        part.scatter_(1, torch.randint(part.shape[1], (rows, 1), generator=generator), True)
    return torch.where(allowed, 3.0 * normals(rows, head.size), FORBIDDEN), allowed


def is_allowed(head: CategoricalHead, allowed: Tensor, action: Tensor) -> bool:
    parts = zip(allowed.split(head.choices, dim=-1), action.flatten(1).unbind(-1), strict=True)
    return all(bool(part.gather(1, choice[:, None]).all()) for part, choice in parts)


@pytest.mark.parametrize("choices", [(2, 3, 4, 2, 3), (6, 4, 6, 4)])
def test_choices_are_those_of_pytorch_among_the_allowed(choices: tuple[int, ...]) -> None:
    head = CategoricalHead(MultiCategorical(choices))
    outputs, allowed = masked_outputs(head, 5_000)
    action = head.sample(outputs, [], *keys_of(5_000))
    assert is_allowed(head, allowed, action) and is_allowed(head, allowed, head.mode(outputs))
    infinite = torch.where(allowed, outputs, -torch.inf)
    references = [torch.distributions.Categorical(logits=part) for part in infinite.split(head.choices, dim=-1)]
    log_prob, entropy = head.evaluate(outputs, [], action)
    expected = sum(one.log_prob(choice) for one, choice in zip(references, action.unbind(-1), strict=True))
    torch.testing.assert_close(log_prob, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(entropy, sum(one.entropy() for one in references), rtol=0, atol=1e-5)
    logits = torch.linspace(-1.0, 1.0, head.size)
    action = head.sample(logits.expand(40_000, -1), [], *keys_of(40_000))
    for part, choice in zip(logits.split(head.choices), action.unbind(-1), strict=True):
        frequency = torch.bincount(choice, minlength=len(part)) / 40_000
        torch.testing.assert_close(frequency, part.softmax(-1), rtol=0, atol=0.012)
    assert (torch.corrcoef(action.T.float()) - torch.eye(len(choices))).abs().max() < 0.02


def test_repeated_components_keep_their_order_and_numbers_at_the_ends_draw_allowed_ones(monkeypatch) -> None:
    assert shortest_pattern([51, 10] * 8) == [51, 10] and shortest_pattern([3, 3, 3]) == [3]
    assert shortest_pattern([2, 3, 4, 2, 3]) == [2, 3, 4, 2, 3]
    head = CategoricalHead(MultiCategorical(torch.tensor([[2, 3], [2, 3]])))
    # One choice of each component is certain: the second, the last, the first, the middle.
    outputs = torch.tensor([[0.0, 50.0, 0.0, 0.0, 50.0, 50.0, 0.0, 0.0, 50.0, 0.0]]).expand(100, -1)
    expected = torch.tensor([[1, 2], [0, 1]]).expand(100, 2, 2)
    assert torch.equal(head.mode(outputs), expected)
    assert torch.equal(head.sample(outputs, [], *keys_of(100)), expected)
    assert head.evaluate(outputs, [], expected)[0].abs().max() < 1e-6
    # Numbers at the ends draw allowed choices.
    head = CategoricalHead(MultiCategorical((61, 61)))
    outputs, allowed = masked_outputs(head, 5_000)
    # Sums of many probabilities fall short of 1 or pass it; the first and the last choices are masked here.
    outputs[:, [0, 60, 61, 121]], allowed[:, [0, 60, 61, 121]] = FORBIDDEN, False
    outputs[:, [30, 91]], allowed[:, [30, 91]] = 0.0, True
    for number in (1e-10, 1.0 - 2.0**-24, 1.0):
        draws = tuple(torch.full((5_000, 1), number) for _ in range(4))
        monkeypatch.setattr("vecenv.learn.heads.open_uniforms", lambda *_, draws=draws: draws)
        assert is_allowed(head, allowed, head.sample(outputs, [], *keys_of(5_000)))


def test_what_is_forbidden_has_no_gradient_and_no_divergence() -> None:
    head = CategoricalHead(MultiCategorical(torch.tensor([[6, 4]] * 2)))
    outputs, allowed = masked_outputs(head, 500)
    action = head.sample(outputs, [], *keys_of(500))
    logits = normals(500, head.size).requires_grad_()
    log_prob, entropy = head.evaluate(torch.where(allowed, logits, FORBIDDEN), [], action)
    (gradient,) = torch.autograd.grad((log_prob + 0.1 * entropy).sum(), logits)
    assert gradient.isfinite().all() and (gradient[~allowed] == 0).all() and gradient[allowed].abs().max() > 0.1
    head, (one, other) = CategoricalHead(MultiCategorical((3, 4))), normals(2, 30, 7)
    one[:, 2] = other[:, 2] = FORBIDDEN
    kept = [
        [torch.distributions.Categorical(logits=part) for part in (outputs[:, :2], outputs[:, 3:])]
        for outputs in (one, other)
    ]
    expected = sum(torch.distributions.kl_divergence(*pair) for pair in zip(*kept, strict=True))
    torch.testing.assert_close(head.divergence(one, [], other, []), expected, rtol=1e-5, atol=1e-5)


def test_units_are_half_widths_from_the_centre() -> None:
    bounds = Bounds(SPEC)
    action = torch.tensor([[-1.0, 0.5, 4.0], [2.0, 0.25, -9.0]])
    assert bounds.units(action).tolist() == [[-1.0, 0.0, 1.0], [1.0, -0.5, -1.0]]
    assert torch.equal(bounds.action(bounds.units(action)), action.clamp(LOW, HIGH))
    wide = Bounds(Bounded(-1.0, 1.0, (2, 3)))
    assert wide.units(torch.zeros(5, 4, 2, 3)).shape == (5, 4, 6) and wide.action(torch.zeros(4, 6)).shape == (4, 2, 3)
    assert Bounds(Bounded(-1.0, 1.0, ())).units(torch.zeros(7)).shape == (7, 1)
    for spec in (Categorical(3), Unbounded((2,)), Bounded(0, 3, (2,), dtype=torch.int64)):
        for kind in (lambda spec, _: Bounds(spec), TanhNormalHead):
            with pytest.raises(ValueError, match="actions must be numbers within finite bounds, those here are"):
                kind(spec, 0.5)


def test_the_squashed_normal_head_is_torchrls() -> None:
    head = TanhNormalHead(SPEC, 0.5)
    outputs = OUTPUTS.expand(40_000, 6)
    mean, deviation = head.parts(outputs)
    reference = TanhNormal(mean, deviation, low=LOW, high=HIGH, upscale=1e6)
    action = head.sample(outputs, [], *keys_of(40_000))
    assert ((action > LOW) & (action < HIGH)).all()
    noise = (torch.atanh(head.bounds.units(action)) - mean) / deviation
    assert noise.mean(0).abs().max() < 0.03
    torch.testing.assert_close(torch.cov(noise.T), torch.eye(3), rtol=0, atol=0.04)
    log_prob, entropy = head.evaluate(outputs, [], action)
    torch.testing.assert_close(log_prob, reference.log_prob(action), rtol=0, atol=2e-2)
    assert torch.equal(entropy, -log_prob)
    units, density = head.units(outputs, noise)
    torch.testing.assert_close(head.bounds.action(units), action, rtol=0, atol=1e-4)
    # In half widths, of which the third is three and the second a half.
    torch.testing.assert_close(density, log_prob + torch.tensor(1.5).log(), rtol=0, atol=2e-2)
    torch.testing.assert_close(head.mode(outputs), head.bounds.action(torch.tanh(mean)))
    # The divergence is that before squashing.
    outputs, others = OUTPUTS.expand(2, 6), torch.stack([OUTPUTS, OUTPUTS.flip(0)])
    normal, other = (torch.distributions.Normal(*head.parts(part)) for part in (outputs, others))
    expected = torch.distributions.kl_divergence(normal, other).sum(-1)
    assert expected[0] == 0 and expected[1] > 0.1
    torch.testing.assert_close(head.divergence(outputs, [], others, []), expected)
    bias, own = head.initial_parameters(CPU)
    mean, deviation = head.parts(bias.unsqueeze(0))
    assert not own and torch.equal(mean, torch.zeros(1, 3))
    torch.testing.assert_close(deviation, torch.full((1, 3), 0.501))


def dirichlet(items: int, initial_std: float = 0.5) -> tuple[DirichletHead, list[Tensor]]:
    head = DirichletHead(Bounded(0.0, 1.0, (items,)), initial_std)
    return head, head.initial_parameters(CPU)[1]


def test_dirichlet_densities_and_divergences_are_those_of_pytorch() -> None:
    for initial_std in (0.05, 0.5, 3.0):
        head, own = dirichlet(6, initial_std)
        outputs, wide = normals(200, head.size), [own[0] - 0.7]
        action = head.sample(outputs, own, *keys_of(200))
        log_prob, entropy = head.evaluate(outputs, own, action)
        reference, other = (
            torch.distributions.Dirichlet(head.concentrations(values, given).double())
            for values, given in ((outputs, own), (outputs.flip(0), wide))
        )
        cash = 1 - action.double().sum(-1, keepdim=True)
        expected = reference.log_prob(torch.cat([action.double(), cash], dim=-1))
        torch.testing.assert_close(log_prob.double(), expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(entropy.double(), reference.entropy(), rtol=1e-5, atol=1e-5)
        found = head.divergence(outputs, own, outputs.flip(0), wide).double()
        torch.testing.assert_close(found, torch.distributions.kl_divergence(reference, other), rtol=1e-4, atol=1e-4)
    # At the edge of the portfolios they are finite.
    head, own = dirichlet(3)
    outputs = torch.zeros(1, head.size, requires_grad=True)
    third = 1 / 3
    for shares in ([0.0, 1.0, 0.0], [1e-30, 0.0, 0.0], [0.5, 0.5, 1e-7], [third, third, third + 1e-6]):
        log_prob, entropy = head.evaluate(outputs, own, torch.tensor([shares]))
        (gradient,) = torch.autograd.grad(log_prob.sum() + entropy.sum(), outputs)
        assert log_prob.isfinite().all() and gradient.isfinite().all()


@pytest.mark.parametrize(("initial_std", "spread"), [(0.1, 0.5), (2.0, 2.0), (100.0, 0.0)])
def test_dirichlet_samples_have_the_moments_of_the_distribution(initial_std: float, spread: float) -> None:
    """Within six standard errors: of means, and of covariances by a bound on fourth moments of numbers in [0, 1]."""
    head, own = dirichlet(4, initial_std)
    outputs = (spread * normals(1, head.size)).expand(ROWS, -1)
    action = head.sample(outputs, own, *keys_of(ROWS)).double()
    weights = torch.cat([action, 1 - action.sum(-1, keepdim=True)], dim=-1)
    alpha = head.concentrations(outputs[:1], own)[0].double()
    mean = alpha / alpha.sum()
    covariance = (torch.diag(mean) - torch.outer(mean, mean)) / (alpha.sum() + 1)
    assert weights.min() >= -1e-6
    assert ((weights.mean(0) - mean).abs() < 6 * (covariance.diag() / ROWS).sqrt()).all()
    centred = weights - mean
    products = centred.unsqueeze(-1) * centred.unsqueeze(-2)
    assert ((products.mean(0) - covariance).abs() < 6 * products.std(0) / ROWS**0.5).all()


def test_where_no_candidate_is_accepted_the_number_is_near_the_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    """With noise of 6.1 and -2.0 deviations and uniform numbers of 1, nothing is accepted at alpha = 1."""
    head, own = dirichlet(2, initial_std=100.0)
    words = (torch.full((1, 6), 1e-9), torch.full((1, 6), 0.3), torch.ones(1, 6), torch.ones(1, 6))
    monkeypatch.setattr("vecenv.learn.heads.open_uniforms", lambda *_: words)
    alpha = head.concentrations(torch.zeros(1, 3), own)
    numbers, accepted = gamma_candidates(alpha, *keys_of(1))
    assert not accepted.any() and len(numbers) == CANDIDATES
    # A candidate is accepted with the mass of the unnormalised density under the normal; a number has none but rarely.
    assert (1 - math.exp(2 / 3) / math.sqrt(2 * math.pi * 2 / 3)) ** CANDIDATES <= 5.5e-6
    drawn = alpha - 1 / 3
    assert torch.equal(head.sample(torch.zeros(1, 3), own, *keys_of(1)), (drawn / drawn.sum())[:, :2])
    # Zero outputs hold the benchmark, and any portfolio can be.
    head, own = dirichlet(5)
    zero = torch.zeros(1, head.size)
    expected = torch.full((1, 5), (1 - CASH) / 5)
    torch.testing.assert_close(head.mode(zero), expected)
    alpha = head.concentrations(zero, own)[0]
    mode = (alpha - 1) / (alpha.sum() - head.size)
    torch.testing.assert_close(mode, torch.cat([expected[0], torch.tensor([CASH])]))
    corner = torch.tensor([[0.0, 0.0, 60.0, 0.0, 0.0, 0.0]])
    torch.testing.assert_close(head.mode(corner), torch.eye(5)[2:3])


def test_what_a_head_or_a_network_cannot_be_for_is_refused() -> None:
    config, options = PPOConfig(num_steps=8, minibatches=2, head="dirichlet"), {"num_paths": 2, "num_days": 330}
    portfolio = vecenv.make("portfolio", 16, market_options=options, compile=False, action="weights")
    for env, task in ((market_env(3, 16), "stock_trading"), (portfolio, "portfolio")):
        with pytest.raises(ValueError, match=f"head 'dirichlet' needs actions that are target weights.*{task}"):
            PPO(env, config)
    with pytest.raises(ValueError, match="benchmark_kl needs the gaussian head"):
        PPO(market_env(3, 16, "weights"), replace(config, benchmark_kl=0.1))
    # Policies of items need a task with items, and an action for each.
    with pytest.raises(ValueError, match="policy 'symbol' needs a task with items"):
        PPO(vecenv.make(REACH_ZERO, 4, compile=False), PPOConfig(policy="symbol", minibatches=1))
    env = market_env(5)
    head, items = GaussianHead(env.scenario.action_spec, 0.5, shared_std=True), env.scenario.items(env.observations())
    with pytest.raises(ValueError, match=r"one action per item, 4, or one more; there are 6"):
        ItemNetwork(
            env.scenario.items, items._replace(features=items.features[:, :4]), head, (8,), False, torch.float32, None
        )


def market_env(num_symbols: int, num_envs: int = 6, action: str = "tilt", **config) -> VecEnv:
    names = [f"SYN{number:02d}" for number in range(num_symbols)]
    market = {"num_paths": 2, "num_days": 120, "symbols": names, "seed": 4}
    rules = {"action": action, "features": FEATURES, "episode_length": 20, "compile": False} | config
    return vecenv.make("stock_trading", num_envs, market="synthetic", market_options=market, **rules)


def network_and_actor(env: VecEnv, policy: str) -> tuple[ItemNetwork, list[Tensor], list[Tensor]]:
    network = make_network(env, NetworkConfig(policy=policy, hidden=(8,)))
    actor, critic = network.initial_parameters(torch.Generator().manual_seed(1), env.device)
    # Large enough weights that symbols differ.
    return network, [tensor + 0.3 * torch.ones_like(tensor) for tensor in actor], critic


def permuted(observation: Tensor, order: Tensor) -> Tensor:
    """Reorder the symbols of an observation [b, p, h, f]."""
    count = len(order)
    cash, prices, holdings, features = observation.split([1, count, count, count * len(FEATURES)], dim=-1)
    features = features.unflatten(-1, (count, -1))[:, order].flatten(1)
    return torch.cat([cash, prices[:, order], holdings[:, order], features], dim=-1)


@pytest.mark.parametrize("policy", ["symbol", "attention"])
def test_permuted_symbols_permute_the_actions(policy):
    env = market_env(5)
    for _ in range(3):
        env.advance(torch.rand(6, 6) - 0.5)
    network, actor, critic = network_and_actor(env, policy)
    order = torch.tensor([3, 0, 4, 1, 2])
    mean, deviation = torch.zeros(network.moments_size), torch.ones(network.moments_size)
    both = env.observations(), permuted(env.observations(), order)
    plain, moved = (network.normalised(seen, mean, deviation) for seen in both)
    scores, moved_scores = network.actor_outputs(actor, plain), network.actor_outputs(actor, moved)
    assert scores.shape == (6, 6) and float(scores[:, :-1].std(1).min()) > 1e-3
    torch.testing.assert_close(moved_scores[:, :-1], scores[:, :-1][:, order])
    torch.testing.assert_close(moved_scores[:, -1], scores[:, -1])
    torch.testing.assert_close(network.value(critic, moved), network.value(critic, plain))


@pytest.mark.parametrize("policy", ["symbol", "attention"])
def test_scores_are_those_of_one_symbol_after_the_other(policy):
    """The definition in plain Python: each symbol's features and the context through one layer, and the mean of all."""
    env = market_env(3, num_envs=2)
    network, actor, _ = network_and_actor(env, policy)
    generator = torch.Generator().manual_seed(2)
    actor = [0.5 * torch.randn(tensor.shape, generator=generator) for tensor in actor]
    inputs = torch.randn(2, 3 * network.num_features + 1, generator=generator)
    weight, bias, score, centre, whole, whole_centre, *heads, _ = actor
    for row, found in zip(inputs, network.actor_outputs(actor, inputs), strict=True):
        features, shared = row[:-1].view(3, -1), row[-1:]
        context = torch.cat([features.mean(0), shared])
        hidden = [torch.tanh(weight @ torch.cat([one, context]) + bias) for one in features]
        if heads:
            query, key, value = (torch.stack(hidden) @ head.T for head in heads)
            hidden = [*torch.stack(hidden) + torch.softmax(query @ key.T / math.sqrt(8), dim=-1) @ value]
        expected = [score[0] @ one + centre[0] for one in hidden]
        expected.append(whole[0] @ torch.stack(hidden).mean(0) + whole_centre[0])
        torch.testing.assert_close(found, torch.stack(expected))
    features, shared = env.scenario.items(env.observations())
    samples = network.samples(env.observations())
    assert samples.shape == (2 * 3, len(FEATURES) + 2)
    assert torch.equal(samples[5], torch.cat([features[1, 2], shared[1]]))


def test_the_tanh_of_networks_is_the_librarys_with_its_gradient():
    values = torch.linspace(-30.0, 30.0, 6_001).requires_grad_()
    own, library = tanh(values), torch.tanh(values)
    assert float((own - library).detach().abs().max()) < 3e-7
    (gradient,), (expected,) = (torch.autograd.grad(result.sum(), values) for result in (own, library))
    assert float((gradient - expected).abs().max()) < 1e-6
    of_each = torch.vmap(torch.func.grad(tanh))(values.detach())
    assert torch.equal(of_each, gradient)


def policy_of(env, policy="symbol"):
    network, actor, _ = network_and_actor(env, policy)
    moments = [torch.zeros(network.moments_size), torch.ones(network.moments_size)]
    return ActorPolicy(network, moments, actor, deterministic=True)


def test_a_policy_that_reads_one_feature_depends_on_it_alone():
    env = market_env(4)
    policy = policy_of(env)
    # The hidden layer sees the second feature only, and scores it with weight 1.
    for parameter in policy.parameters[2:]:
        parameter.zero_()
    policy.parameters[2][0, 1], policy.parameters[4][0, 0] = 0.5, 1.0
    curves = partial_dependence(policy, env.observations())
    assert curves.shape == (len(FEATURES) + 1, len(GRID))
    rise = curves[1] - curves[1, len(GRID) // 2]
    torch.testing.assert_close(rise, torch.tanh(0.5 * GRID), rtol=1e-3, atol=1e-3)
    assert float((curves[[0, 2, 3]] - curves[[0, 2, 3], :1]).abs().max()) < 1e-6
    figure = dependence_figure({"trained": policy}, env, env.scenario.item_features)
    shown = [axis.get_xlabel() for axis in figure.axes if axis.get_visible()]
    assert shown == [*FEATURES, "weight"] and "standard deviations" in " ".join(figure.get_suptitle().split())
    with pytest.raises(ValueError, match="needs a policy of two items or more"):
        partial_dependence(policy_of(env, "flat"), env.observations())
