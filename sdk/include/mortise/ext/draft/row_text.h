/* The draft mortise.row_text/0 of ABI 0.2 has become mortise.row_text/1, with the same table. This header stays for the
 * sources that include it. */
#include "../row_text.h"
