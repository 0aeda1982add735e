"""orders/confirm.py: a customer confirms an order."""

from decimal import Decimal

from django.db import transaction

from larder import events, pricing, stock
from larder.orders.models import Account, CreditExceeded, Order


def confirm(order_id: int) -> Order:
    with transaction.atomic():
        order = Order.objects.select_for_update().get(pk=order_id)
        # The credit limit belongs to the account; a group of companies has one account for all its kitchens.
        account = Account.objects.select_for_update().get(pk=order.account_id)
        total = Decimal("0")
        for line in order.lines.select_related("article").order_by("article_id"):
            lots = stock.reserve(line)  # locks the lots, first expired first
            price = pricing.price_line(line, account, lots)
            line.net, line.price_audit_id = price.net, price.audit_id
            total += price.net
        order.save_lines()
        if account.open_amount + total > account.credit_limit:
            raise CreditExceeded(order_id)  # everything above is undone
        account.open_amount += total
        account.save(update_fields=["open_amount"])
        order.mark_confirmed(total)
    events.publish("order.confirmed", order_id)
    return order
