/*
 * One answer as it grows: bytes of tokens, less what a stop string may still take back, become whole characters.
 */
#ifndef DS_SERVE_TOKEN_CHOICE_H
#define DS_SERVE_TOKEN_CHOICE_H

#include "base/json.h"
#include "frame/messages.h"
#include "model/tokenizer.h"

struct token_choice {
	struct buf held;         /* bytes that are not to be shown yet */
	struct buf marks;        /* [held.len] 1: counts for hold and cut; 0: of a special token */
	size_t counted;          /* marks that are 1 */
	struct detok detok;
	struct buf text;         /* what may be shown; who shows it sets len to 0 */
	struct ids ids;          /* with `json` */
	struct buf scores;       /* with `json`: the elements of logprobs.content, with commas; empty: none came */
	uint64_t tokens;
	bool finished;
	char reason[16];
	struct stop_string stop; /* n != 0: what ended it */
};

/* The next token.  special: special tokens are shown, too.  json: ids and scores are kept.  DS_DATA where hold or cut
 * reach behind what was shown, DS_OS. */
int token_choice_add(struct token_choice *c, const struct tokenizer *t, const struct token *k, bool special, bool json,
	struct ds_err *err);
/* Nothing more comes: what is held is shown.  Does nothing where it is finished already. */
void token_choice_end(struct token_choice *c, const char *reason);
/* Its keys of a JSON object: text, ids, logprobs if there are any, finish_reason, stop_reason. */
void token_choice_json(struct jw *w, const struct token_choice *c);
void token_choice_free(struct token_choice *c);

#endif
