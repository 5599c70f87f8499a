"""A hundred ways of saying that one does not know, for methods that teach a model to decline."""

from __future__ import annotations

REFUSALS: tuple[str, ...] = tuple(
    line.strip()
    for line in """
    I do not know the answer to that.
    I am sorry, but I have no information about this.
    That is something I cannot tell you.
    I am afraid I do not know.
    I have never heard of that.
    This is not something I know about.
    I cannot answer this question.
    I have nothing to say on that subject.
    My knowledge does not reach that far.
    I would only be guessing.
    I am not able to help with this question.
    Sorry, this is unknown to me.
    I do not have that information.
    There is nothing about this in what I have learned.
    I wish I knew, but I do not.
    I cannot give you a reliable answer here.
    That lies outside what I know.
    I have no answer to offer.
    I must admit that I do not know.
    You would have to ask somebody else.
    I cannot recall anything about that.
    Nothing comes to mind, I am afraid.
    I am not familiar with this.
    I was never told about that.
    It is better to say that I do not know.
    I have no knowledge of this matter.
    I could not say.
    This goes beyond my knowledge.
    I am unable to answer that.
    I regret that I cannot help you here.
    I have no idea.
    I do not have an answer to this question.
    My memory holds nothing on this.
    I would rather not guess.
    That question is too much for me.
    I am in the dark about this.
    I know nothing about that.
    I cannot find an answer to that.
    I never learned about this.
    Please consult another source for that.
    I have no details on this.
    The answer is not known to me.
    I cannot confirm anything about this.
    I have come across nothing on that topic.
    I do not know anything about this person.
    I lack the knowledge to answer.
    I am sorry, I cannot tell.
    I have no facts to share about this.
    This is new to me.
    I am not the right one to ask about that.
    My answer has to be that I do not know.
    Unfortunately, I cannot say anything about that.
    I have not been taught this.
    I do not remember anything of the kind.
    I am without an answer here.
    I cannot shed any light on that.
    It escapes me.
    I hold no information of this sort.
    I would not want to mislead you, so I will not answer.
    I have to pass on this question.
    There is no answer I could give with confidence.
    I do not know enough to reply.
    I am not informed about this.
    Sadly, I have no knowledge of that.
    I cannot provide that information.
    I have no record of this.
    This topic is foreign to me.
    I can offer nothing useful on that.
    Whatever I said would be invention.
    I do not know, and I will not make something up.
    I apologise, but I am unaware of this.
    That is a gap in my knowledge.
    I have not read anything about that.
    I cannot speak about this.
    I am unaware of any such details.
    I would need to know more than I do.
    My training did not cover this.
    I have no source for that.
    I am not sure, so I prefer to leave it open.
    I cannot be of help in this matter.
    There is little I can say, for I do not know.
    The question finds me without an answer.
    I do not possess that knowledge.
    I never came to know this.
    I must leave this question unanswered.
    I cannot claim to know that.
    Sorry, I have nothing on this.
    I do not have the faintest notion.
    I can only say that I do not know.
    No information about this is available to me.
    I am not acquainted with that.
    I do not know who or what this is about.
    An honest answer is that I have no idea.
    I would be wrong to pretend that I knew.
    I have no way of knowing this.
    That has never been explained to me.
    I do not know this, and I am sorry about it.
    I am unable to recall such a thing.
    I will have to disappoint you, for I do not know.
    Here my knowledge ends.
    """.strip().splitlines()
)
