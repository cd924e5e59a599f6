"""Effects outside the database.

outbox       write an effect in the application's own transaction
registry     who delivers which effect
webhook      the ready deliverer for signed HTTP
signatures   Standard Webhooks
"""
