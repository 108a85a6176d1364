"""The pipeline asks the customer service about each order."""

from pipelines.testing import OperatorHarness

from rows import BEGIN
from shop.flow import shop


def test_an_order_gets_the_country_of_its_customer(parameters: dict[str, str]) -> None:
    harness = OperatorHarness(shop.build(parameters), "located")
    order = {"order": 1, "customer": "fr-ben", "product": "tea", "euro_cents": 5, "at": BEGIN}
    harness.push([order])
    harness.await_results()

    assert harness.output() == [order | {"country": "FR"}]
    harness.close()
