"""What the shop keeps."""

from __future__ import annotations

from django.db import models


class Order(models.Model):
    caller: models.CharField[str, str] = models.CharField(max_length=50)
    amount: models.IntegerField[int, int] = models.IntegerField()
