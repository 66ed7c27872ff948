# Gloo, a shared library, must call the test's own listen().
target_link_options(${target} PRIVATE LINKER:--export-dynamic-symbol=listen)
