"""Tests, by behaviour. A package, so that tests share helpers: `from tests.helper import ...`."""
