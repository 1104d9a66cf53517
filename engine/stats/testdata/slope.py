# A second implementation of Slope and PoissonUpper in plain Python, whose answers TestSlope and TestPoissonUpper have: python3 slope.py
import itertools, math
# studentized bootstrap, exact, a second implementation
def bt(v):
    n=len(v); m=sum(v)/n; sd=lambda x,mm: math.sqrt(sum((a-mm)**2 for a in x)/(n-1)); se=sd(v,m)/math.sqrt(n)
    ts=[]
    for r in itertools.product(v,repeat=n):
        mm=sum(r)/n; s=sd(r,mm)/math.sqrt(n)
        ts.append(math.copysign(math.inf,mm-m) if s<1e-9 else (mm-m)/s)
    ts.sort(); k=math.floor(0.025*len(ts))
    return m-ts[-1-k]*se, m-ts[k]*se
print(bt([10,11,12,14]), bt([281,279.9,282.2,280.4]), bt([3.1,2.7,3.3,2.9,3.6]))
def pois(k):
    lo,hi=0,100
    for _ in range(200):
        mid=(lo+hi)/2
        p=sum(math.exp(-mid)*mid**i/math.factorial(i) for i in range(k+1))
        if p>0.05: lo=mid
        else: hi=mid
    return lo
print([pois(k) for k in (0,1,2,11)])
x=[1,2,4];y=[12,21,39.5]
print(sum((a-7/3)*(b-72.5/3) for a,b in zip(x,y))/sum((a-7/3)**2 for a in x))
