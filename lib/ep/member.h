/*
 * How the ranks of a unit agree on who is in it: a state machine without clock, thread or socket.
 *
 * Each rank has installed an epoch (a number and a set).  A change is a proposal (epoch, set), told to all of the set;
 * proposals that differ are merged: the common set, the greater number.  It is installed when every member of the set
 * has said exactly the same.  Of one epoch number a rank only ever proposes sets that shrink, and none once it has
 * installed one of that number: so no two ranks that count each other as members install different sets under one
 * number.  (Both would have had to say the other's set before their own, each set being smaller than the other.)
 *
 * A set grows only under a number of which the rank has said nothing yet: all members having seen each other's word
 * that a newcomer is connected, each proposes it (member_grow); who hears of that before it has seen so itself agrees
 * where it knows the newcomer.  The newcomer adopts the proposals of the unit.
 *
 * A rank that is not in another's proposal goes on alone, under a number of its own, and may come back as a newcomer.
 */
#ifndef DS_EP_MEMBER_H
#define DS_EP_MEMBER_H

#include "base/err.h"
#include "ep/ranks.h"

struct member_set { uint64_t epoch, plan; struct ranks ranks; }; /* plan: what the speaker has in effect */

struct member_ops {
	/* To a rank that is connected.  Order between two ranks is kept, nothing is lost while they are connected. */
	void (*tell)(void *ctx, size_t to, const struct member_set *what);
	void (*drop)(void *ctx, size_t who); /* no member any more: its connection is to be closed */
	void (*installed)(void *ctx);        /* m->now is new */
	/* This rank was to become a member and is not: it is still a newcomer, if it says its floor again
	 * (member_floor).  Where it had been a member of a unit it goes on alone. */
	void (*outside)(void *ctx);
	/* This rank was a member, or wanted to be, and no longer is: it is alone, all others were dropped. */
	void (*excluded)(void *ctx);
};

struct member {
	size_t self, world;
	struct member_set now;         /* installed; epoch 0: none yet */
	struct member_set want;        /* equal to now where nothing is going on */
	struct ranks connected;        /* ... to this rank */
	struct ranks newcomers;        /* connected, no members, have said that they want to be */
	struct member_set *heard;      /* [world] what each said last */
	bool told;                     /* want was told */
	bool begun;                    /* has been in a unit, so that it can go on alone */
	bool newcomer;                 /* this rank waits to be taken in by the ranks it is connected to */
	const struct member_ops *ops;
	void *ctx;
};

int member_init(struct member *m, size_t self, size_t world, const struct member_ops *ops, void *ctx,
	struct ds_err *err);
void member_free(struct member *m);

/* A unit begins with these ranks under the number epoch, once all of them are connected. */
void member_begin(struct member *m, uint64_t epoch, const struct ranks *all);
void member_connected(struct member *m, size_t who);
/* It went, or could not be reached.  It may come back later as a newcomer. */
void member_lost(struct member *m, size_t who);
void member_hear(struct member *m, size_t from, const struct member_set *what);
/* from wants to be a member; floor is the greatest number of which it has spoken. */
void member_newcomer(struct member *m, size_t from, uint64_t floor);
/* All members have said that these newcomers are connected to them. */
void member_grow(struct member *m, uint64_t epoch, const struct ranks *newcomers);

/* This rank will be a newcomer to others, to which it connects from now on: it is alone from here on (those that it
 * is connected to are dropped). */
void member_apply(struct member *m);
/* It gives that up: all are dropped. */
void member_withdraw(struct member *m);
uint64_t member_floor(const struct member *m);

/* A change is going on. */
bool member_changing(const struct member *m);
/* Those whose word is missing. */
struct ranks member_missing(const struct member *m);

#endif
