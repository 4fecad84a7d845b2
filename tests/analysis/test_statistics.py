import math

import pytest

from dynavit.analysis.statistics import mcnemar, mean, paired_difference, standard_error, t_quantile, wilson_interval


@pytest.mark.parametrize(
    ("probability", "dof", "tabulated"),
    [
        (0.975, 1, 12.7062),
        (0.975, 2, 4.3027),
        (0.975, 3, 3.1824),
        (0.975, 4, 2.7764),
        (0.975, 9, 2.2622),
        (0.975, 30, 2.0423),
        (0.975, 120, 1.9799),
        (0.9, 5, 1.4759),
        (0.995, 6, 3.7074),
        (0.025, 2, -4.3027),
        (0.5, 7, 0.0),
    ],
)
def test_t_quantile_equals_the_tables(probability, dof, tabulated):
    assert t_quantile(probability, dof) == pytest.approx(tabulated, abs=6e-5)


def test_t_quantile_of_one_and_two_degrees_has_a_formula():
    for p in (0.6, 0.9, 0.975, 0.9995):
        assert t_quantile(p, 1) == pytest.approx(math.tan(math.pi * (p - 0.5)), rel=1e-9)
        assert t_quantile(p, 2) == pytest.approx((2 * p - 1) / math.sqrt(2 * p * (1 - p)), rel=1e-9)


@pytest.mark.parametrize(("probability", "dof"), [(0.975, 0), (0.0, 3), (1.0, 3)])
def test_t_quantile_refuses_what_has_no_answer(probability, dof):
    with pytest.raises(ValueError, match="dof of at least 1"):
        t_quantile(probability, dof)


def test_mean_and_standard_error():
    assert mean([1.0, 2.0, 6.0]) == 3.0
    assert standard_error([1.0, 2.0, 6.0]) == pytest.approx(math.sqrt((4 + 1 + 9) / 2 / 3))
    assert standard_error([1.0]) is None


def test_paired_difference_is_the_t_interval_of_the_differences():
    found = paired_difference({0: 5.0, 1: 7.0, 2: 9.0}, {0: 4.0, 1: 5.0, 2: 6.0})  # differences 1, 2, 3
    assert (found.mean, found.seeds) == (2.0, 3)
    reach = 4.302653 * math.sqrt(1 / 3)
    assert found.interval == pytest.approx((2 - reach, 2 + reach), abs=1e-5)
    assert found.excludes_zero is False


def test_pairing_sees_what_the_spread_between_seeds_hides():
    """Seeds differ a lot, differences hardly."""
    found = paired_difference({0: 10.1, 1: 20.1, 2: 30.11}, {0: 10.0, 1: 20.0, 2: 30.0})
    assert found.excludes_zero is True


def test_only_common_seeds_count():
    found = paired_difference({0: 1.0, 1: 2.0, 5: 100.0}, {0: 0.5, 1: 1.0, 2: 50.0})
    assert (found.mean, found.seeds) == (0.75, 2)
    assert paired_difference({0: 1.0}, {1: 1.0}) is None


def test_one_seed_or_equal_differences_have_no_interval():
    assert paired_difference({0: 2.0}, {0: 1.0}).interval is None
    equal = paired_difference({0: 0.3, 1: 0.4, 2: 0.5}, {0: 0.2, 1: 0.3, 2: 0.4})  # 0.1 three times, but for rounding
    assert equal.interval is None and equal.excludes_zero is None


@pytest.mark.parametrize(("right", "samples"), [(0, 10), (1, 10), (370, 1000), (10, 10), (3700, 10000)])
def test_wilsons_ends_are_the_shares_that_the_normal_test_just_accepts(right, samples):
    """(k / n - p)^2 = z^2 p (1 - p) / n at both ends p."""
    z = 1.959963984540054
    for end in wilson_interval(right, samples):
        assert (right / samples - end) ** 2 == pytest.approx(z * z * end * (1 - end) / samples, abs=1e-12)
    low, high = wilson_interval(right, samples)
    assert 0 <= low <= right / samples <= high + 1e-12 and high <= 1
    with pytest.raises(ValueError, match="11 of 10 is no share"):
        wilson_interval(11, 10)


@pytest.mark.parametrize(("b", "c"), [(0, 0), (0, 1), (3, 3), (1, 9), (12, 30), (500, 460)])
def test_mcnemar_counts_coins(b, c):
    """Twice the share of all 2^n series of coins that are at least so uneven on one side, with whole numbers."""
    tail = sum(math.comb(b + c, k) for k in range(min(b, c) + 1))
    assert mcnemar(b, c) == mcnemar(c, b) == pytest.approx(min(1.0, 2 * tail / 2 ** (b + c)), rel=1e-9)
