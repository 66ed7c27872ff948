# As for test_sessions.c.
include(${folder}/link_test_sessions.cmake)
