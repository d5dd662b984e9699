"""Providers' own batches: items that are not called live but handed over, at a discount.

    submitter   which batches go, in which parts; hands them over
    watcher     asks how they are doing, writes down what came of them, takes them back in time
    providers   one seam, `provider.py::ProviderBatches`; openai and anthropic behind it
    rules       which batches may go, and until when (pure)
    preparation an item's line -> what the provider gets, and how its answer is read
    results     a provider's result lines -> what came of items (pure)
    records     what is known of batches at providers, in Postgres

Items are in state `native` meanwhile. Whatever happens, they leave it in time for live calls
before their batch's deadline: as done, or as pending again.
"""
