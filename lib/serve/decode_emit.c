/* Tokens on their way out: stop strings, frames, how a choice and a request end. */
#include <stdlib.h>
#include <string.h>

#include "base/time.h"
#include "serve/decode_impl.h"

/* Looks for stop strings in the text that the token adds.  True where one is complete. */
static bool stopped(struct decode *d, struct job *j, struct token *out)
{
	const struct stop_string *s;
	struct stop_found found;
	const char *p;
	size_t n;

	if (!j->stop)
		return false;
	tokenizer_text(d->w->tokenizer, j->token, false, &p, &n);
	if (!stop_feed(j->stop, p, n, &found)) {
		out->hold = stop_hold(j->stop);
		return false;
	}
	s = &j->g->request.stops[found.which];
	out->stop = *s;
	out->cut = found.cut;
	return true;
}

static bool is_stop_id(const struct decode *d, const struct job *j)
{
	const struct config *c = &d->w->model->config;
	const struct request *r = &j->g->request;

	for (size_t i = 0; i < c->eos_count && !r->ignore_eos; i++)
		if (j->token == c->eos[i])
			return true;
	for (size_t i = 0; i < r->stop_id_count; i++)
		if (j->token == r->stop_ids[i])
			return true;
	return false;
}

/* Why the choice ends with j->token, or NULL. */
static const char *finished(struct decode *d, struct job *j, struct token *out)
{
	uint64_t most = j->g->request.max_tokens;

	if (stopped(d, j, out) || is_stop_id(d, j))
		return "stop";
	if (most && j->index >= most)
		return "length";
	return j->position >= d->w->model->config.max_positions ? "length" : NULL;
}

void group_done(struct decode *d, struct group *g, const char *reason)
{
	struct done *done = &g->done;
	struct job *j = g->lead;

	if (j && j->state == JOB_PROMPT)
		done->usage = prompt_usage(&j->at);
	TAILQ_FOREACH(j, &d->jobs, link)
		if (j->g == g) {
			snprintf(done->choices[j->choice].reason, sizeof(done->choices[0].reason), "%s", reason);
			done->choices[j->choice].completion = j->index;
		}
	snprintf(done->id, sizeof(done->id), "%s", g->request.id);
	snprintf(done->reason, sizeof(done->reason), "%s",
		done->choices[0].reason[0] ? done->choices[0].reason : reason);
	done->choice_count = g->request.n > 1 && g->began_ns ? (size_t)g->request.n : 0;
	for (size_t i = 0; i < g->request.n; i++)
		done->usage.completion += done->choices[i].completion;
	done->decode_ns = g->began_ns ? (uint64_t)(time_mono_ns() - g->began_ns) : 0;
	meta_reset(d->meta);
	done_put(d->meta, done);
	stage_send(g->src, FRAME_DONE, g->stream, d->meta, NULL, 0, false);
	group_end(d, g);
}

/* The choice is over; with the last one the request is. */
static void finish(struct decode *d, struct job *j, const char *reason)
{
	struct done_choice *c = &j->g->done.choices[j->choice];

	snprintf(c->reason, sizeof(c->reason), "%s", reason);
	c->completion = j->index;
	if (j->g->open > 1)
		job_end(d, j);
	else if (engine_check(d->w->engine, &d->lost) == 0)
		group_done(d, j->g, reason);
}

bool emit(struct decode *d, struct job *j, const struct sampled *t)
{
	struct token out = { .index = j->index++, .choice = j->choice, .t = *t,
		.has_logprob = j->g->request.sampling.logprobs, .t_ns = (uint64_t)time_wall_ns() };
	const char *reason;

	j->token = t->id;
	reason = finished(d, j, &out);
	if (reason) {
		snprintf(out.reason, sizeof(out.reason), "%s", reason);
		out.hold = 0;
	}
	meta_reset(d->meta);
	token_put(d->meta, &out);
	stage_send(j->g->src, FRAME_TOKEN, j->g->stream, d->meta, NULL, 0, false);
	if (reason)
		finish(d, j, reason);
	return !reason;
}
