"""The paired benchmark: Sluice beside other gateways, in one run on one machine."""
