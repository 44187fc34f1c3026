"""Whether a new item gains exposure by an injected title, and what each way to bound that costs."""
