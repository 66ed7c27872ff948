# The same device on the same fake.
include(${folder}/link_test_cuda.cmake)
