"""`MutationAnchor`: the line is there once or the test fails; the copy is only a copy; everything is put back."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any, Final

import pytest

from raxol_otel.testing import AnchorLost, MutationAnchor

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

PRICES: Final = '''"""Prices."""

from __future__ import annotations

from dataclasses import dataclass

from shop_example.rates import RATE

LIMIT = 3


@dataclass(slots=True)
class Basket:
    """What is bought."""

    count: int

    def check(self) -> None:
        """Raise when it is too much."""
        if self.count > LIMIT:
            raise ValueError(self.count)


def price(count: int) -> int:
    """What so many cost."""
    return count * RATE


def double(count: int) -> int:
    """What twice as many cost."""
    count = 2 * count
    return count * RATE
'''
TILL: Final = '''"""The till."""

from shop_example import prices
from shop_example.prices import LIMIT, Basket, price as cost


def total(count: int) -> int:
    """What is to be paid."""
    Basket(count).check()
    return cost(count)


def limit() -> int:
    """How much may be bought."""
    return LIMIT


def again(count: int) -> int:
    """As `total`, by another way."""
    return prices.price(count)
'''
COST: Final = "return count * RATE"


@pytest.fixture(autouse=True)
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Any]:
    """A package of its own, imported; its till."""
    folder = tmp_path / "shop_example"
    folder.mkdir()
    sources = {
        "__init__": "",
        "rates": "RATE = 5\n",
        "prices": PRICES,
        "till": TILL,
        "late": "from .prices import price\n",
    }
    for name, source in sources.items():
        (folder / f"{name}.py").write_text(source)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    importlib.invalidate_caches()
    yield importlib.import_module("shop_example.till")
    for name in [name for name in sys.modules if name.startswith("shop_example")]:
        del sys.modules[name]


def cost_anchor() -> MutationAnchor:
    """The line that multiplies, in `price`."""
    return MutationAnchor("shop_example.prices", COST, within="price")


# --- The line ---------------------------------------------------------------------------------------------------------


def test_the_line_is_found_whatever_its_indentation() -> None:
    """It is the whole line, and where it stands is known."""
    anchor = MutationAnchor("shop_example.prices", "    if self.count > LIMIT:  ")
    assert anchor.line_number == PRICES.split("\n").index("        if self.count > LIMIT:") + 1
    assert repr(anchor) == f"<MutationAnchor shop_example.prices:{anchor.line_number} 'if self.count > LIMIT:'>"


def test_a_line_that_is_gone_fails_and_names_what_is_like_it() -> None:
    """Whoever rewrote the line sees at once what to anchor to now."""
    with pytest.raises(AnchorLost, match=r"has no line 'return count \* RATES'; like it: 'return count \* RATE'"):
        MutationAnchor("shop_example.prices", "return count * RATES")


def test_a_part_of_a_line_is_not_the_line() -> None:
    """An anchor says all of it."""
    with pytest.raises(AnchorLost):
        MutationAnchor("shop_example.prices", "count * RATE")


def test_an_ambiguous_line_fails_and_says_where() -> None:
    """Nobody is to guess which is meant; the function tells."""
    numbers = [number for number, line in enumerate(PRICES.split("\n"), 1) if line.strip() == COST]
    with pytest.raises(AnchorLost, match=f"2 times, in lines {numbers[0]}, {numbers[1]}; name the function"):
        MutationAnchor("shop_example.prices", COST)
    found = [MutationAnchor("shop_example.prices", COST, within=name).line_number for name in ("price", "double")]
    assert found == numbers


@pytest.mark.parametrize("within", ["prices", "Basket.price", "Basket.check.inner", "LIMIT"])
def test_a_function_that_is_gone_fails(within: str) -> None:
    """As a line that is."""
    with pytest.raises(AnchorLost, match="has no function or class"):
        MutationAnchor("shop_example.prices", COST, within=within)


def test_a_module_needs_a_source() -> None:
    """What is built in, or is not there, has no lines."""
    with pytest.raises(ValueError, match="no file of source"):
        MutationAnchor("sys", "pass")
    with pytest.raises(ModuleNotFoundError):
        MutationAnchor("shop_example.nothing", "pass")


# --- The copy ---------------------------------------------------------------------------------------------------------


def test_the_copy_is_changed_and_nobody_else_sees_it(shop: Any) -> None:
    """It has the module's name and imports, and the table of modules has the real one."""
    real = sys.modules["shop_example.prices"]
    copy: Any = cost_anchor().mutated("return count * RATE + 1")
    assert (copy.price(2), copy.double(2), shop.total(2)) == (11, 20, 10)
    assert (copy.__name__, copy.__package__) == ("shop_example.prices", "shop_example")
    assert sys.modules["shop_example.prices"] is real is shop.prices


def test_several_lines_may_take_the_place_of_one() -> None:
    """Each is indented like the line."""
    copy: Any = cost_anchor().mutated("if count > 1:\n    count = 1\nreturn count * RATE")
    assert copy.price(7) == 5


def test_what_is_no_mutation_is_refused() -> None:
    """A change of blanks or comments alone, or one that is no Python, proves nothing."""
    with pytest.raises(ValueError, match="changes nothing"):
        cost_anchor().mutated("return (count * RATE)  # dear")
    with pytest.raises(SyntaxError):
        cost_anchor().mutated("return count *")


# --- The swap ---------------------------------------------------------------------------------------------------------


def test_swapped_in_it_is_everywhere_and_then_nowhere(shop: Any) -> None:
    """Functions under another name, the module itself, constants; afterwards all is as it was."""
    before = {name: dict(vars(module)) for name, module in sys.modules.items() if name.startswith("shop_example")}
    with cost_anchor().swapped("return -1") as copy:
        assert sys.modules["shop_example.prices"] is copy is shop.prices
        assert (shop.total(2), shop.again(2)) == (-1, -1)
        assert importlib.import_module("shop_example.late").price(2) == -1
    with MutationAnchor("shop_example.prices", "LIMIT = 3").swapped("LIMIT = 9"):
        assert (shop.limit(), shop.total(5)) == (9, 25)
    assert (shop.limit(), shop.total(2), shop.again(2)) == (3, 10, 10)
    assert "shop_example.late" not in sys.modules
    assert before == {
        name: dict(vars(module)) for name, module in sys.modules.items() if name.startswith("shop_example")
    }


def test_the_swap_ends_with_an_error_too(shop: Any) -> None:
    """A check that fails inside leaves nothing behind."""
    with pytest.raises(ZeroDivisionError), cost_anchor().swapped("return 1 // 0"):
        shop.total(1)
    assert shop.total(1) == 5


# --- The proof --------------------------------------------------------------------------------------------------------


def test_a_check_that_notices_is_told_with_its_reason(shop: Any) -> None:
    """What it raised can be looked at; pytest's own failures count."""

    def check() -> None:
        assert shop.total(2) == 10

    def fails() -> None:
        with pytest.raises(ValueError, match="4"):
            shop.total(4)

    assert isinstance(cost_anchor().assert_caught(check, "return 0"), AssertionError)
    anchor = MutationAnchor("shop_example.prices", "if self.count > LIMIT:")
    assert "DID NOT RAISE" in str(anchor.assert_caught(fails, "if self.count > LIMIT + 1:"))
    assert shop.total(2) == 10


def test_a_mutation_that_survives_fails(shop: Any) -> None:
    """The check does not check what it says."""
    with pytest.raises(AssertionError, match=r"survived: 'return 5' in the place of 'return count \* RATE'"):
        cost_anchor().assert_caught(lambda: shop.total(1), "return 5")


def test_a_check_that_would_catch_anything_fails(shop: Any) -> None:
    """One that fails with an unchanged copy tells nothing of the mutation; nor does a name that is not there."""
    basket = shop.Basket

    def identity() -> None:
        assert shop.Basket is basket

    with pytest.raises(AssertionError, match="unchanged copy"):
        cost_anchor().assert_caught(identity, "return 0")
    with pytest.raises(NameError):
        cost_anchor().assert_caught(lambda: shop.total(1), "return count * RATTE")


def test_a_check_that_skips_has_caught_nothing(shop: Any) -> None:
    """It says so."""

    def check() -> None:
        if shop.total(1) != 5:
            pytest.skip("not now")

    with pytest.raises(pytest.skip.Exception):
        cost_anchor().assert_caught(check, "return 0")
    assert shop.total(1) == 5
