"""pricing/api.py: what a line costs."""

from django.db.models import F

from larder.pricing.models import CustomerPrice, PriceAudit, PromoBudget
from larder.pricing.rules import best_promo, near_date_discount


def price_line(line, account, lots) -> "Price":
    """The price of one order line. Called once for each line while the order is being confirmed."""
    base = CustomerPrice.objects.get(account_id=account.price_group_id, article_id=line.article_id)
    net = base.net * line.quantity - near_date_discount(base, lots)
    promo = best_promo(line.article_id, account.price_group_id)
    if promo:
        amount = promo.amount_for(net)
        granted = PromoBudget.objects.filter(pk=promo.budget_id, remaining__gte=amount).update(
            remaining=F("remaining") - amount
        )
        if granted:
            net -= amount
    audit = PriceAudit.objects.create(line=line, base=base.net, promo=promo, net=net)  # kept ten years, shown on invoices
    return Price(net=net, audit_id=audit.pk)


def quote(articles, account) -> dict[int, "Price"]:
    """Prices for a catalogue page: no lots, no budget, no audit. Promotions are shown as 'while stocks last'."""
    prices = CustomerPrice.objects.filter(account_id=account.price_group_id, article_id__in=articles)
    return {p.article_id: Price(net=p.net - shown_promo(p), audit_id=None) for p in prices}
