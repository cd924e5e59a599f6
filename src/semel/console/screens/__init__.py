"""One module for each screen: functions of a `View` that return data, and the actions of its forms.

overview   what needs a person first, and what the last day came to
records    the list with its filters, and finding one by its whole key
"""
