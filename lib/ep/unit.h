/*
 * A unit: ranks that step together.  How they meet, vote, change their number and their plan.
 *
 * Ranks' batches are independent (law 2), so that a unit needs no common step number, only the same sequence of
 * collectives on all ranks.  Each collective step begins with a vote, in which every member says what it would like to
 * do; all see the same votes and draw the same conclusions: which kind of step this is and how large, and whether a
 * plan takes effect, newcomers are taken in, or the unit is over.
 *
 * Only the loss of a member needs an agreement of its own (ep/member.h); it ends in a new epoch among the survivors.
 * unit_vote sees to it; every other wait of the old epoch gives EP_BROKEN, and the caller begins its step again, with a
 * vote.
 *
 * One compute thread calls; unit_offer may be called from there too.
 */
#ifndef DS_EP_UNIT_H
#define DS_EP_UNIT_H

#include "ep/transport.h"

struct unit;

enum unit_kind { UNIT_NONE, UNIT_MAIN, UNIT_MTP }; /* a step of nothing, of the main model, of the MTP layer */
enum { UNIT_MOST_ROWS = 1 << 21 }; /* of a micro-batch */

struct unit_vote {
	enum unit_kind kind;        /* that this rank wants; UNIT_NONE: none of its own */
	uint32_t rows[EP_LANES];    /* of each micro-batch, at most UNIT_MOST_ROWS (else DS_BUG) */
	bool ended;                 /* this rank's input has ended, and all of it is answered */
};

struct unit_round {
	enum unit_kind kind;        /* the greatest kind that any member wants; who wants another takes part with
	                             * nothing */
	size_t lanes;               /* micro-batches with rows anywhere: 1 or 2; 1 of an MTP step */
	/* rows of each member in this step, by rank and lane (0 of those that take part with nothing) */
	uint32_t (*rows)[EP_LANES]; /* [world] */
	struct ranks members;
	uint64_t epoch;             /* whose vote it was */
	bool over;                  /* every member's input has ended: no step follows */
};

/* One thing that must agree: a name and its value on this rank, for messages ("model", "2f…"). */
struct unit_term { char name[24], value[96]; };

struct unit_ops {
	/* A plan was offered by some rank: check it and make ready for it.  On the mesh's thread.  Non-zero: refused,
	 * which ends the unit's use of it everywhere. */
	int (*prepare)(void *ctx, uint64_t id, const void *plan, size_t n, struct ds_err *err);
	/* From here on this plan (the last one prepared under this id; n 0: the default) among these members.  On the
	 * compute thread, in unit_vote. */
	int (*placed)(void *ctx, uint64_t id, const void *plan, size_t n, const struct ranks *members,
		struct ds_err *err);
};

struct unit_config {
	const char *addr;           /* unix:PATH or tcp:HOST:PORT */
	bool anywhere;              /* a TCP address beyond loopback is the operator's explicit wish */
	size_t rank, world;
	int64_t unit_timeout_ns, peer_timeout_ns;
	const char *transport;      /* "shm" or "tcp"; NULL: shm where addr is a unix socket */
	struct link link;
	int64_t spin_ns;
	size_t bytes[SLOT_KINDS];   /* SLOT_VOTE is the unit's own affair */
	const struct unit_term *terms; /* [term_count] */
	size_t term_count;
	const struct unit_ops *ops;
	void *ctx;
};

/*
 * Meets the other ranks at addr: who is first listens there for the rest, in whatever order they start.  Where a unit
 * runs there already this rank joins it.  Blocks until the unit is complete.
 * DS_UNAVAILABLE after unit_timeout: names the ranks that did not come.  DS_PROTO: a rank's version or a term differs
 * (names rank, term, both values).  DS_CONFIG: rank and world make no sense, two ranks have the same number, worlds
 * differ.  Every rank that was there says the same.
 */
int unit_open(struct unit **u, const struct unit_config *c, struct ds_err *err);
/* Leaves: the others go on without this rank and do not call it lost. */
void unit_close(struct unit *u);

/* A vote: blocks until all members have voted.  Losses, plans and newcomers are seen to here.  0 or DS_OS...: never
 * EP_BROKEN. */
int unit_vote(struct unit *u, const struct unit_vote *mine, struct unit_round *round, struct ds_err *err);

/* A message of this epoch's transport makes no sense; err: why, as what follows "rank 2: " ("it sent ...").  The sender
 * is lost when this returns EP_BROKEN: another epoch follows, in any case.  DS_BUG: it is this rank's own; DS_OS. */
int unit_blame(struct unit *u, size_t rank, struct ds_err *err);

/* True where nothing asks this rank to vote: then it may sleep until unit_bell_fd is readable (transport_park). */
bool unit_park(struct unit *u, bool on);
void unit_linger(struct unit *u); /* before that, after a step: the next vote is likely to come soon */
int unit_bell_fd(const struct unit *u);

/* Offers a plan to all members; it takes effect in a later vote, the same on all.  *id is what it is called, greater
 * than any that was known; id >> 32 counts them.  Of two at once the greater one stays. */
int unit_offer(struct unit *u, const void *plan, size_t n, uint64_t *id, struct ds_err *err);
/* Of the last plan that took effect: its id and how long the vote that brought it took longer for it. */
void unit_planned(const struct unit *u, uint64_t *id, int64_t *pause_ns);

/* What happened to the membership, for reports: epochs so far, the last change's time from the loss (or the newcomer)
 * to the first vote after it. */
struct unit_stat { uint64_t epoch, losses, joins, votes; int64_t recovery_ns; struct ranks members; };
void unit_stat(const struct unit *u, struct unit_stat *s);

/* The transport of the epoch; its calls may give EP_BROKEN: then vote again. */
struct transport *unit_transport(struct unit *u);
/* The next seq of this (kind, lane) in this epoch. */
uint64_t unit_seq(struct unit *u, enum slot_kind kind, size_t lane);

#endif
