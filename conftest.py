"""Loads the plugin in a checkout that is not installed. Where it is installed, pytest knows it by the same name."""

pytest_plugins = ["broker_contract_pytest"]
