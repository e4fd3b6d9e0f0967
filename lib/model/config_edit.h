/* A config.json with some fields changed, all others as they were. */
#ifndef DS_MODEL_CONFIG_EDIT_H
#define DS_MODEL_CONFIG_EDIT_H

#include <jansson.h>
#include <stdbool.h>

#include "base/mem.h"
#include "model/config.h"

/* like: a file, or a directory with a config.json.  The new text, one field a line, and what it says.  DS_NOINPUT,
 * DS_DATA, DS_OS. */
int config_edit(const char *like, void (*edit)(json_t *root, const void *arg), const void *arg, struct buf *text,
	struct config *c, struct ds_err *err);

/* Sets or removes quantization_config, as DeepSeek-V3 (V3.1 with ue8m0) has it. */
void config_set_fp8(json_t *root, bool fp8, bool ue8m0);

#endif
