"""pricing/import_prices.py: the weekly customer prices from the purchasing system."""

from django.db import connection, transaction

from larder.pricing.models import CustomerPrice
from larder.pricing.parse import rows_of


def on_file(path: str) -> None:
    """Called by the SFTP watcher for each file that arrives. The list comes on Tuesdays and holds from Wednesday."""
    rows = rows_of(path)  # the whole list, not the differences
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("TRUNCATE customer_price")
        for row in rows:
            price = CustomerPrice(**row)
            price.full_clean()  # article, price group and currency must exist: three queries
            price.save()
