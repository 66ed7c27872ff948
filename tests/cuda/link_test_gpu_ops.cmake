# As for test_sessions.c.
include(${folder}/link_test_sessions.cmake)
target_sources(${target} PRIVATE gpu/on_device.c)
