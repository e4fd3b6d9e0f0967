/*
 * Whether speculation pays: steps with drafts and without are timed side by side, by how many requests share them.
 *
 * Of steps with n requests (classes: n = 1, 2 to 3, 4 to 7, ...) a step with drafts gives g tokens a request and takes
 * t; one without takes p.  Speculation pays where g * p > t.  A few steps without drafts are taken now and then to know
 * p.  Where it does not pay the class goes without, and is tried again after a while.  What is decided changes times
 * only, never a token.
 */
#ifndef DS_SERVE_DRAFT_POLICY_H
#define DS_SERVE_DRAFT_POLICY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DRAFT_CLASSES = 13, DRAFT_RECENT = 15 };

/* Times of the last steps of a kind.  Their median is what counts: one step that lost its processor to another program
 * takes a hundred times as long, and says nothing. */
struct draft_times {
	double ns[DRAFT_RECENT];
	uint64_t steps;
};

struct draft_class {
	uint64_t steps;            /* since the class was last judged to go without, or ever */
	struct draft_times drafted, plain;
	double gain;               /* tokens a request and step with drafts, recent ones weigh more */
	uint64_t off;              /* steps that the class still goes without */
	uint64_t verdicts;         /* how often it was found not to pay */
	/* over the whole run, steps with drafts */
	uint64_t total_steps, total_tokens, total_requests; /* requests: summed over the steps */
};

struct draft_policy {
	bool always;
	struct draft_class c[DRAFT_CLASSES];
};

/* Whether the next step, of n requests, is one with drafts. */
bool draft_wanted(const struct draft_policy *p, size_t n);
/* Such a step took ns and gave `tokens` in all.  True where the class goes without from now on; *ratio: g * p / t;
 * *again: not for the first time. */
bool draft_timed(struct draft_policy *p, size_t n, bool drafted, size_t tokens, int64_t ns, double *ratio, bool *again);
/* Of the whole run: tokens that a step with drafts gave a request, and how many times as long it took as one without.
 * False where steps without were not measured. */
bool draft_summary(const struct draft_policy *p, double *tokens, double *cost);

#endif
