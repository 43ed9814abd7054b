"""The values that everything else is made of: records, names, configuration, limits, errors. Pure: no clock, disk or
socket.
"""
