"""Where everything is."""

from django.urls import path

from examples.django.shop import views

urlpatterns = [
    path("payments", views.Payments.as_view()),
    path("transfers", views.transfer),
    path("orders", views.Orders.as_view()),
    path("notes", views.note),
]
