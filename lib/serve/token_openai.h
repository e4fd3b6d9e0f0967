/* What clients of OpenAI's API and of vLLM send besides, and the form in which they send it. */
#ifndef DS_SERVE_TOKEN_OPENAI_H
#define DS_SERVE_TOKEN_OPENAI_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

/* A key that is known, and changes nothing at the values that openai_check_neutral lets pass. */
bool openai_neutral_key(const char *key);
/* DS_DATA, with key and value, where the value of such a key would change something.  n: answers to the prompt. */
int openai_check_neutral(const char *key, const json_t *v, uint64_t n, struct ds_err *err);

/* messages with every content that is an array of parts made one text, its parts joined by newlines as vLLM does it:
 * a new reference, or NULL with DS_DATA where a part is no text. */
json_t *openai_plain_messages(const json_t *messages, struct ds_err *err);

#endif
