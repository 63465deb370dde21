/* Host extension mortise.row_text/1: named texts of a row, next to the numbers of mortise_reward_out.
 *
 * host->get_extension(MORTISE_EXT_ROW_TEXT) is a `const mortise_row_text*`, or null in a host without it. The answer
 * is the same from `open` to the end of the process. The text named
 * "pred" is the answer that the reward found in the completion: maj@k of a validation counts these. Every text is in
 * the completion files.
 */
#ifndef MORTISE_EXT_ROW_TEXT_H_
#define MORTISE_EXT_ROW_TEXT_H_

#include "../host.h"

#define MORTISE_EXT_ROW_TEXT "mortise.row_text/1"

typedef struct mortise_row_text {
  uint32_t struct_size;
  uint32_t flags; /* 0 */
  /* `sink` is that of the mortise_reward_out of the call, `row` the row's index in the call's batch. Both texts are
   * UTF-8 and are copied; the name is not empty. Of texts above 4096 bytes only the first are kept. [any], until the
   * slot returns. */
  void (*note)(void* sink, int64_t row, mortise_text name, mortise_text text) MORTISE_NOEXCEPT;
} mortise_row_text;

#endif /* MORTISE_EXT_ROW_TEXT_H_ */
