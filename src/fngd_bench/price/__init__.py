"""The price of a step: methods side by side in one process, their memory in one each, records, the table of prices."""
